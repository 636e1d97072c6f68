//! Deployments and workloads that placement is judged by, by name.

use anyhow::{anyhow, bail};

use super::settings::Settings;

/// What differs from the reference, as TOML.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    overlay: &'static str,
}

const fn scenario(name: &'static str, about: &'static str, overlay: &'static str) -> Scenario {
    Scenario { name, about, overlay }
}

/// The reference first. Levels are conversations unless the text says otherwise.
pub const SCENARIOS: &[Scenario] = &[
    scenario(
        "reference",
        "10 documents of 3,600 to 4,000 tokens, 3 to 5 turns, 3 workers of 64 slots",
        "levels = [60, 80, 100, 120, 140, 160, 180, 188, 200, 240]",
    ),
    scenario("think_0", "no time between turns", "levels = [120, 180]\nworkload.think_s = 0"),
    scenario("think_2", "2 s between turns on average", "levels = [120, 180, 200]\nworkload.think_s = 2"),
    scenario("think_8", "8 s between turns on average", "levels = [120, 180, 216]\nworkload.think_s = 8"),
    scenario(
        "bursts",
        "16 requests at once that share 90 % of 4,000 tokens, answers of about 300; levels are bursts a minute",
        "levels = [6, 12, 18]\nwindow_s = 900\nsnapshot_s = 300\nworkload.kind = 'bursts'\nworkload.answer_tokens = [300, 100]",
    ),
    scenario(
        "hot_document",
        "everybody asks about one document",
        "levels = [120, 180]\nworkload.starters = 1",
    ),
    scenario(
        "unique",
        "prompts that share nothing, one turn each",
        "levels = [60, 90, 120]\nworkload.starters = 100000\nworkload.turns = [1, 1]",
    ),
    scenario(
        "many_documents",
        "200 documents, more than one worker can hold",
        "levels = [120, 180]\nworkload.starters = 200",
    ),
    scenario(
        "uneven",
        "one of three workers is half as fast",
        "levels = [60, 120, 160]\nslowness = [1.0, 1.0, 2.0]",
    ),
    scenario("workers_2", "2 workers", "workers = 2\nlevels = [80, 120]"),
    scenario("workers_12", "12 workers", "workers = 12\nlevels = [480, 720]\nseeds = 3"),
    scenario("workers_64", "64 workers", "workers = 64\nlevels = [2560, 3840]\nseeds = 1"),
    scenario(
        "slots_48",
        "the router is told 48 slots where there are 64",
        "levels = [120, 160, 180, 200]\nrouter.slots = 48",
    ),
    scenario(
        "slots_80",
        "the router is told 80 slots where there are 64",
        "levels = [120, 160, 180, 200]\nrouter.slots = 80",
    ),
    scenario(
        "slots_unknown",
        "the router is not told of slots",
        "levels = [120, 160, 180, 200]\nrouter.slots_told = false",
    ),
    scenario("lag_0", "KV events arrive at once", "levels = [120, 180]\nrouter.event_lag_ms = 0"),
    scenario("lag_50", "KV events arrive after 50 ms", "levels = [120, 180]\nrouter.event_lag_ms = 50"),
    scenario("lag_500", "KV events arrive after 500 ms", "levels = [120, 180]\nrouter.event_lag_ms = 500"),
    scenario(
        "no_events",
        "no KV events: placements are remembered for 120 s",
        "levels = [120, 180]\nrouter.events = false",
    ),
    scenario(
        "routers_2",
        "2 routers that tell each other over NATS",
        "levels = [120, 180, 200]\nrouter.count = 2\nrouter.sharing = 'nats'",
    ),
    scenario(
        "routers_4",
        "4 routers that tell each other over NATS",
        "levels = [120, 180, 200]\nrouter.count = 4\nrouter.sharing = 'nats'",
    ),
    scenario(
        "routers_2_engines",
        "2 routers that know of each other by the engines' counts",
        "levels = [120, 180, 200]\nrouter.count = 2\nrouter.sharing = 'engines'",
    ),
    scenario(
        "routers_4_engines",
        "4 routers that know of each other by the engines' counts",
        "levels = [120, 180, 200]\nrouter.count = 4\nrouter.sharing = 'engines'",
    ),
    scenario(
        "routers_4_alone",
        "4 routers that know nothing of each other",
        "levels = [120, 180, 200]\nrouter.count = 4\nrouter.sharing = 'nothing'",
    ),
    scenario(
        "zipf_groups",
        "50 documents of which a few are asked about most (Zipf 1.1); 80 % of each is shared, the rest is everyone's own",
        "levels = [120, 180]\nworkload.starters = 50\nworkload.zipf = 1.1\nworkload.shared = 0.8",
    ),
    scenario(
        "own_documents",
        "4 workers, every conversation about a document of its own",
        "workers = 4\nlevels = [40, 60, 80, 100, 120]\nworkload.starters = 100000",
    ),
    scenario(
        "poisson",
        "conversations begin at random moments, whether others are over or not; levels are conversations a minute",
        "levels = [36, 42, 48]\nworkload.arrivals = 'poisson'",
    ),
    scenario(
        "gamma",
        "conversations begin in bunches (gamma, shape 0.5); levels are conversations a minute",
        "levels = [36, 42, 48]\nworkload.arrivals = 'gamma'",
    ),
    scenario(
        "holdout",
        "5 % of requests placed by load alone, so that a policy that loses is noticed; after ten minutes",
        "levels = [180, 188, 200]\nseeds = 3\nrouter.holdout = 0.05\nwarm_up_s = 600\nwindow_s = 900\nsnapshot_s = 300",
    ),
    scenario(
        "trace",
        "the Mooncake conversation trace on 16 workers; levels are percent of its speed (needs --trace FILE)",
        "workers = 16\nlevels = [50, 100]\nseeds = 1\nwindow_s = 900\nsnapshot_s = 300\nworkload.kind = 'trace'",
    ),
];

impl Scenario {
    pub fn find(name: &str) -> anyhow::Result<Self> {
        let Some(found) = SCENARIOS.iter().find(|scenario| scenario.name == name) else {
            let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            bail!("scenario is `{name}`, expected one of {}, or all", names.join(", "));
        };
        Ok(*found)
    }

    /// Whether it needs a file.
    pub fn needs_trace(&self) -> bool {
        self.name == "trace"
    }

    pub fn settings(&self, base: &Settings, trace: Option<&str>) -> anyhow::Result<Settings> {
        let mut overlay = self.overlay.to_owned();
        if self.needs_trace() {
            let path = trace.ok_or_else(|| anyhow!("scenario `{}` needs --trace FILE", self.name))?;
            overlay += &format!("\nworkload.trace = {}", toml::Value::from(path));
        }
        base.overlaid(&overlay, &format!("scenario {}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_can_be_run_and_names_are_told() {
        let base = Settings::reference().unwrap();
        for scenario in SCENARIOS {
            let settings = scenario.settings(&base, Some("/nowhere/trace.jsonl"));
            assert!(settings.is_ok_and(|settings| settings != base), "{}", scenario.name);
        }
        let unknown = Scenario::find("hot").unwrap_err().to_string();
        assert!(unknown.starts_with("scenario is `hot`, expected one of reference, "), "{unknown}");
        let missing = Scenario::find("trace").unwrap().settings(&base, None).unwrap_err();
        assert_eq!(missing.to_string(), "scenario `trace` needs --trace FILE");
    }
}
