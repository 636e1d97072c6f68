//! The course of a measurement: a warm-up that does not count, then a window in which one looks at fixed moments.

use std::time::Duration;

use tokio::time::Instant;

use super::Collector;
use crate::results::LevelFigures;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    pub warm_up: Duration,
    pub window: Duration,
    /// How often one looks, evenly, the last time at the end; and how far back each time.
    pub looks: usize,
    pub look_back: Duration,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    WarmingUp { left: Duration },
    Measuring { left: Duration },
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::WarmingUp { .. } => "warming up",
            Self::Measuring { .. } => "measuring",
        }
    }

    pub fn left(self) -> Duration {
        match self {
            Self::WarmingUp { left } | Self::Measuring { left } => left,
        }
    }
}

impl Course {
    pub fn length(&self) -> Duration {
        self.warm_up + self.window
    }

    /// Runs it. `told` hears where it stands a few times a second; false ends it early. What was seen at each look is
    /// pushed to `seen`, so that it is there when this is dropped.
    pub async fn run(
        &self,
        collector: &Collector,
        seen: &mut Vec<LevelFigures>,
        mut told: impl FnMut(Phase) -> bool,
    ) {
        collector.warms_up();
        let begin = Instant::now();
        if !wait(begin + self.warm_up, |left| told(Phase::WarmingUp { left })).await {
            return;
        }
        collector.reset();
        let begin = Instant::now();
        let end = begin + self.window;
        for look in 1..=self.looks as u32 {
            let next = begin + self.window * look / self.looks as u32;
            if !wait(next, |left| told(Phase::Measuring { left: left + (end - next) })).await {
                return;
            }
            seen.push(collector.last(self.look_back));
        }
    }
}

const STEP: Duration = Duration::from_millis(200);

async fn wait(until: Instant, mut told: impl FnMut(Duration) -> bool) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !told(left) {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        tokio::time::sleep(left.min(STEP)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Objective;

    #[tokio::test(start_paused = true)]
    async fn a_course_looks_as_often_as_it_says_and_ends_when_told() {
        let collector = Collector::new(Objective::default(), Duration::from_secs(60));
        let seconds = Duration::from_secs;
        let course = Course { warm_up: seconds(60), window: seconds(300), looks: 3, look_back: seconds(60) };
        let (begin, mut seen, mut phases) = (Instant::now(), Vec::new(), Vec::new());
        course
            .run(&collector, &mut seen, |phase| {
                phases.push(phase);
                true
            })
            .await;
        assert_eq!((seen.len(), begin.elapsed().as_secs()), (3, 360));
        assert_eq!(phases[0], Phase::WarmingUp { left: seconds(60) });
        assert_eq!(phases.last(), Some(&Phase::Measuring { left: Duration::ZERO }));
        assert!(phases.contains(&Phase::Measuring { left: seconds(300) }));
        seen.clear();
        course
            .run(&collector, &mut seen, |phase| phase.left() >= seconds(100) || phase.name() != "measuring")
            .await;
        assert_eq!(seen.len(), 2, "it ended after the second look");
    }
}
