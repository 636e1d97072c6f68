//! The reference deployment's recorded figures, which the simulated ones stand beside.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::results::{Set, first_difference};
use crate::simulate::Settings;

pub(crate) const RECORDED: &str = include_str!("../../reference/baselines.json");
/// What has to be as it was there.
const SAME: [&str; 5] = ["workers", "slowness", "router", "workload", "engine"];

#[derive(Debug, Deserialize)]
pub struct Reference {
    levels: Vec<usize>,
    rr: Map<String, Value>,
    kv: Map<String, Value>,
}

impl Reference {
    /// Of a set that reproduces it; none for any other.
    pub fn of(set: &Set) -> Option<Self> {
        let settings = Settings::reference().ok().and_then(|settings| serde_json::to_value(settings).ok())?;
        let same =
            SAME.iter().all(|key| first_difference(&settings[key], &set.conditions[key], key).is_none());
        same.then(|| serde_json::from_str(RECORDED).expect("an embedded file that tests read"))
    }

    /// What was recorded: round robin, and the plain cost.
    pub fn value(&self, mode: &str, key: &str, level: usize) -> Option<f64> {
        let recorded = match mode {
            "round_robin" => &self.rr,
            "dynamo" => &self.kv,
            _ => return None,
        };
        let at = self.levels.iter().position(|of| *of == level)?;
        recorded.get(key)?.get(at)?.as_f64()
    }

    /// A curve over the levels.
    pub fn curve(&self, mode: &str, key: &str) -> Vec<(f64, f64)> {
        let point = |level: &usize| Some((*level as f64, self.value(mode, key, *level)?));
        self.levels.iter().filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_figures_are_found_by_mode_and_level() {
        let mut set = crate::results::tests::sweep().sets.remove(0);
        assert!(Reference::of(&set).is_none(), "another workload");
        set.conditions = serde_json::to_value(Settings::reference().unwrap()).unwrap();
        set.conditions["seeds"] = 2.into();
        let reference = Reference::of(&set).unwrap();
        set.conditions["workers"] = 6.into();
        assert!(Reference::of(&set).is_none(), "another deployment");
        assert_eq!(reference.value("round_robin", "ttft_p95_ms", 60), Some(655.0));
        assert_eq!(reference.value("dynamo", "tops", 180), Some(3907.7));
        assert_eq!(reference.value("kvlane", "tops", 180), None);
        assert_eq!(reference.value("dynamo", "tops", 181), None);
        assert_eq!(reference.curve("dynamo", "rps").len(), 7);
    }
}
