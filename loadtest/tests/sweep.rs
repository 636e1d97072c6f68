//! Sweeps in real time: behind the router with its modes switched, interrupted and resumed, cut short when it is too much,
//! and against endpoints that answer nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{conversations, endpoint, engine, nowhere, router, router_with, saying};
use kvlane_engine_adapters::secret::bearer_in;
use kvlane_loadtest::arrivals::Pattern;
use kvlane_loadtest::client::Endpoint;
use kvlane_loadtest::http::Admin;
use kvlane_loadtest::live::{Collector, Course, Level, Live, Load};
use kvlane_loadtest::measure::Objective;
use kvlane_loadtest::report;
use kvlane_loadtest::results::Results;
use kvlane_loadtest::sweep::{News, Plan, Saturation, Sweep, Switch};
use kvlane_loadtest::workload::Workload;
use serde_json::json;
use tokio_util::sync::CancellationToken;

fn plan(modes: &[&str], levels: &[usize]) -> Plan {
    let ms = Duration::from_millis;
    Plan {
        modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
        mode_given: modes.len() > 1,
        levels: levels.to_vec(),
        per_minute: false,
        repeats: 2,
        first_seed: 1,
        course: Course { warm_up: ms(300), window: ms(1500), looks: 3, look_back: ms(500) },
        fill: ms(200),
        saturation: Saturation::default(),
        lag_limit: Duration::from_secs(60),
    }
}

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kvlane-sweep-{name}-{}.json", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

struct Setting {
    endpoint: Endpoint,
    switch: Switch,
    objective: Objective,
    /// Watched beside.
    admin: Option<Admin>,
    within: Option<Duration>,
}

/// Runs a sweep; stops it after so many cells. Gives what came of it, the cells that were told of, and the loads.
async fn sweep(
    setting: &Setting,
    plan: Plan,
    file: &Path,
    stop_after: usize,
) -> anyhow::Result<(Results, usize, Vec<Arc<Live>>)> {
    let load = |seed: u64, names_session: bool, collector: Arc<Collector>| -> anyhow::Result<Load> {
        let (endpoint, workload) =
            (setting.endpoint.clone(), Workload::Conversations(Box::new(conversations())));
        Ok(Load { endpoint, workload, names_session, decisions: None, seed, collector })
    };
    let sweep = Sweep {
        conditions: json!({"levels": plan.levels, "modes": plan.modes}),
        plan,
        objective: setting.objective,
        switch: setting.switch.clone(),
        load: &load,
        pattern: Pattern::Poisson,
        most: 20,
        file,
        about: "a test".to_owned(),
        admin: setting.admin.clone(),
        until: setting.within.map(|within| tokio::time::Instant::now() + within),
    };
    let stop = CancellationToken::new();
    let (mut cells, mut loads) = (0, Vec::new());
    let running = sweep.run(&stop, |progress| {
        assert!(progress.done <= progress.of);
        match progress.news {
            News::Cell(_) => {
                cells += 1;
                if cells == stop_after {
                    stop.cancel();
                }
            }
            News::Begins(live) => loads.push(live.clone()),
            _ => {}
        }
    });
    let results = tokio::time::timeout(Duration::from_secs(120), running).await.expect("never a hang")?;
    Ok((results, cells, loads))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administration_is_shown_the_token_it_asks_for() {
    let token = file("token");
    std::fs::write(&token, "admin-secret").unwrap();
    let setting = format!("admin.token_file={}", token.display());
    let app = router_with(&[engine(20.0).await], &["--set", &setting]).await;
    let url = format!("http://{}", app.admin_address.unwrap());
    let shown = Switch::router(Admin::new(&url, Some(bearer_in(&token).unwrap())));
    shown.to("round_robin", true).await.unwrap();
    assert_eq!(app.router.mode().name(), "round_robin");
    shown.back().await.unwrap();
    assert_eq!(app.router.mode().name(), "kv");
    let error = format!("{:#}", Switch::router(&url).to("round_robin", true).await.unwrap_err());
    assert!(error.contains("401") && !error.contains("admin-secret"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_are_switched_and_what_was_interrupted_goes_on() {
    let workers = [engine(20.0).await, engine(20.0).await];
    let app = router(&workers).await;
    let setting = Setting {
        endpoint: endpoint(&format!("http://{}", app.address)),
        switch: Switch::router(&format!("http://{}", app.admin_address.unwrap())),
        objective: Objective::default(),
        admin: Some(Admin::from(&format!("http://{}", app.admin_address.unwrap()))),
        within: None,
    };
    let (modes, levels, path) = (["round_robin", "kvlane"], [2, 4], file("modes"));
    // Stopped in round robin: the router goes back to what it was.
    let (one, ..) = sweep(&setting, plan(&modes, &levels), &path, 1).await.unwrap();
    assert_eq!((one.sets[0].cells.len(), app.router.mode().name()), (1, "kv"));
    std::fs::remove_file(&path).unwrap();
    let (partly, told, _) = sweep(&setting, plan(&modes, &levels), &path, 3).await.unwrap();
    assert_eq!((partly.sets[0].cells.len(), told), (3, 3));
    let kept = Results::read(&path).unwrap();
    let names = |results: &Results| -> Vec<(String, usize, u64)> {
        results.sets[0].cells.iter().map(|cell| (cell.mode.clone(), cell.level, cell.repeat)).collect()
    };
    assert_eq!(names(&kept), names(&partly), "kept after every cell");
    let (whole, told, loads) = sweep(&setting, plan(&modes, &levels), &path, 0).await.unwrap();
    assert_eq!((whole.sets[0].cells.len(), told), (8, 5));
    assert_eq!(whole.sets[0].cells[..3], kept.sets[0].cells[..], "what is there is not run again");
    let set =
        |live: &Live| -> Vec<Level> { live.control.changes().iter().map(|change| change.level).collect() };
    for load in &loads {
        let why = "also the one where only 4 was missing: it comes from 2, not from nothing";
        assert_eq!(set(load), [2, 4].map(Level::Concurrency), "{why}");
    }
    assert_eq!(loads.len(), 3);
    for cell in &whole.sets[0].cells {
        let figures = cell.figures.unwrap();
        assert!(figures.requests.unwrap() > 5.0 && figures.error_pct == Some(0.0), "{cell:?}");
        assert!(figures.ttft_p50_ms <= figures.ttft_p95_ms && figures.tops.unwrap() > 0.0);
        assert!(!cell.by_turn.is_empty() && cell.details["generator"].is_object());
        assert!(figures.inflight_spread_max.is_some_and(|most| most <= 4.0), "{cell:?}");
    }
    assert_eq!(app.router.mode().name(), "kv", "as it was before");
    // Nothing is left to do, and another sweep does not go into its file.
    assert_eq!(sweep(&setting, plan(&modes, &levels), &path, 0).await.unwrap().1, 0);
    // But for what was worth nothing.
    let mut spoilt = Results::read(&path).unwrap();
    spoilt.sets[0].cells[5].invalid = Some("the generator was busy".to_owned());
    spoilt.write(&path).unwrap();
    assert_eq!(sweep(&setting, plan(&modes, &levels), &path, 0).await.unwrap().1, 1);
    let refused = sweep(&setting, plan(&modes, &[2, 6]), &path, 0).await.unwrap_err().to_string();
    assert!(refused.contains("is of another sweep: `levels` differs"), "{refused}");
    let text = report::text(&whole);
    assert!(text.contains("bends at") && text.contains("round_robin"), "{text}");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_begun_another_time() {
    let worker = engine(20.0).await;
    let mut setting = Setting {
        endpoint: endpoint(&format!("http://{}", worker.address())),
        switch: Switch::Nothing,
        objective: Objective::default(),
        admin: None,
        within: Some(Duration::from_millis(100)),
    };
    let path = file("within");
    let plan = || Plan { repeats: 1, ..plan(&["as_it_is"], &[2, 4]) };
    let cells =
        async |setting: &Setting| sweep(setting, plan(), &path, 0).await.unwrap().0.sets[0].cells.len();
    assert_eq!(cells(&setting).await, 0);
    // Two seconds for the first, and not two more, however slow the machine is in between.
    setting.within = Some(Duration::from_millis(3500));
    assert_eq!(cells(&setting).await, 1);
    setting.within = None;
    assert_eq!(cells(&setting).await, 2);
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_is_enough() {
    let worker = engine(20.0).await;
    let setting = Setting {
        endpoint: endpoint(&format!("http://{}", worker.address())),
        switch: Switch::Nothing,
        // So little is promised that everything is ten times later.
        objective: Objective { ttft_s: 1e-5, tpot_s: 1.0 },
        admin: None,
        within: None,
    };
    let path = file("much");
    let plan = Plan { repeats: 1, ..plan(&["as_it_is"], &[2, 4, 8]) };
    let (results, told, _) = sweep(&setting, plan, &path, 0).await.unwrap();
    let cells = &results.sets[0].cells;
    assert_eq!((cells.len(), told), (3, 1), "one is run, two are not");
    assert!(cells[0].saturated.as_ref().unwrap().contains("more than 10 times the objective"));
    assert!(
        cells[1].figures.is_none()
            && cells[2].saturated.as_ref().unwrap().starts_with("not run: at 2 already")
    );
    std::fs::remove_file(path).unwrap();
}

/// An open loop that the engine cannot keep up with is passed over, and that is too much.
#[tokio::test(flavor = "multi_thread")]
async fn rates_are_levels_too() {
    let worker = engine(5.0).await;
    let setting = Setting {
        endpoint: endpoint(&format!("http://{}", worker.address())),
        switch: Switch::Nothing,
        objective: Objective { ttft_s: 60.0, tpot_s: 60.0 },
        admin: None,
        within: None,
    };
    let path = file("rates");
    let plan = Plan { repeats: 1, per_minute: true, ..plan(&["as_it_is"], &[120, 60_000, 90_000]) };
    let (results, ..) = sweep(&setting, plan, &path, 0).await.unwrap();
    let cells = &results.sets[0].cells;
    assert_eq!((cells[0].saturated.clone(), cells.len()), (None, 3));
    assert!(cells[1].saturated.as_ref().unwrap().contains("could not begin"), "{:?}", cells[1].saturated);
    assert_eq!(results.sets[0].levels_are, "conversations a minute");
    std::fs::remove_file(path).unwrap();
}

/// Refused, broken, silent, malformed: a finished report with the reason in it, and never a hang.
#[tokio::test(flavor = "multi_thread")]
async fn bad_endpoints_end_in_a_finished_report() {
    let error = "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n";
    let chunk = "HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let malformed = "HTTP/1.1 200 OK\r\n\r\ndata: {nonsense}\n\n";
    for (name, url, says) in [
        ("refused", nowhere().await, "refused"),
        ("500", saying(error, true).await, "status 500"),
        ("endless", saying(chunk, false).await, "nothing came back"),
        ("malformed", saying(malformed, true).await, "not understood"),
    ] {
        let setting = Setting {
            endpoint: endpoint(&url),
            switch: Switch::Nothing,
            objective: Objective::default(),
            admin: None,
            within: None,
        };
        let path = file(name);
        let plan = Plan { repeats: 1, ..plan(&["as_it_is"], &[2, 4]) };
        let (results, ..) = sweep(&setting, plan, &path, 0).await.unwrap();
        let first = &results.sets[0].cells[0];
        let complaints = first.details["complaints"].to_string();
        let why = format!("{complaints} {:?} {:?}", first.invalid, first.saturated);
        assert!(why.contains(says), "{name}: {why}");
        assert!(first.saturated.is_some(), "{name}: higher levels are not tried");
        assert!(report::text(&results).contains("as_it_is"));
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_switches_what_is_not_ours() {
    let worker = engine(20.0).await;
    let endpoint = endpoint(&format!("http://{}", worker.address()));
    let log = file("switch-log");
    let command = format!("echo $MODE >> {}", log.display());
    let switch = Switch::Command { command, endpoint: Box::new(endpoint.clone()) };
    let setting = Setting {
        endpoint: endpoint.clone(),
        switch,
        objective: Objective::default(),
        admin: None,
        within: None,
    };
    let path = file("switch");
    let (results, ..) = sweep(&setting, plan(&["off", "on"], &[2]), &path, 0).await.unwrap();
    assert_eq!(results.sets[0].modes(), ["off", "on"]);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "off\non\non\noff\n");
    let command = "sleep 60 & echo no such deployment >&2; exit 3".to_owned();
    let failing = Switch::Command { command, endpoint: Box::new(endpoint) };
    let refused = failing.to("on", true).await.unwrap_err().to_string();
    assert!(refused.contains("exit status: 3") && refused.contains("no such deployment"), "{refused}");
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(log).unwrap();
}
