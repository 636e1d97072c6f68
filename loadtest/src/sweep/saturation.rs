//! When a level is more than a deployment can do, and higher ones would only tell that again.

use crate::measure::Objective;
use crate::results::LevelFigures;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saturation {
    /// First tokens that come so many times later than promised.
    pub ttft_times: f64,
    pub error_pct: f64,
    pub enabled: bool,
}

impl Default for Saturation {
    fn default() -> Self {
        Self { ttft_times: 10.0, error_pct: 10.0, enabled: true }
    }
}

impl Saturation {
    /// What shows it; none when it is not.
    /// `passed_over` conversations could not begin, and `late` requests still wait for a first token that was promised.
    pub fn of(
        &self,
        figures: &LevelFigures,
        objective: &Objective,
        passed_over: u64,
        late: u64,
    ) -> Option<String> {
        if !self.enabled {
            return None;
        }
        let most_ms = self.ttft_times * objective.ttft_s * 1e3;
        let [ttft, failed] = [figures.ttft_p95_ms, figures.error_pct].map(|figure| figure.unwrap_or(0.0));
        if figures.requests.is_none_or(|requests| requests == 0.0) {
            Some("nothing came back".to_owned())
        } else if failed > self.error_pct {
            Some(format!("{failed:.1} % failed, more than {} %", self.error_pct))
        } else if ttft > most_ms {
            Some(format!("TTFT p95 was {ttft:.0} ms, more than {} times the objective", self.ttft_times))
        } else if late as f64 > figures.requests.unwrap_or(0.0).max(1.0) {
            Some(format!("{late} requests still waited for a first token, more than were answered"))
        } else if passed_over > 0 {
            Some(format!("{passed_over} conversations could not begin, there were too many"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_says_why() {
        let fine = LevelFigures { ttft_p95_ms: Some(700.0), requests: Some(9.0), ..LevelFigures::default() };
        let of = |figures: LevelFigures, passed_over| {
            Saturation::default().of(&figures, &Objective::default(), passed_over, 0)
        };
        assert_eq!(of(fine, 0), None);
        for (figures, passed_over, says) in [
            (
                LevelFigures { ttft_p95_ms: Some(6100.0), ..fine },
                0,
                "TTFT p95 was 6100 ms, more than 10 times",
            ),
            (LevelFigures { error_pct: Some(11.0), ..fine }, 0, "11.0 % failed"),
            (LevelFigures { requests: Some(0.0), ..fine }, 0, "nothing came back"),
            (fine, 4, "4 conversations could not begin"),
        ] {
            let why = of(figures, passed_over).unwrap();
            assert!(why.contains(says), "{why}");
        }
        let off = Saturation { enabled: false, ..Saturation::default() };
        assert_eq!(off.of(&LevelFigures::default(), &Objective::default(), 4, 0), None);
        let waiting = Saturation::default().of(&fine, &Objective::default(), 0, 10).unwrap();
        assert!(waiting.contains("10 requests still waited"), "{waiting}");
    }
}
