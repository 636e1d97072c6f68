//! What is measured in which order, and how long it takes.

use std::time::Duration;

use super::saturation::Saturation;
use crate::live::Course;
use crate::results::Set;

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub modes: Vec<String>,
    /// Whether somebody has to switch to them.
    pub mode_given: bool,
    pub levels: Vec<usize>,
    /// Whether levels are conversations begun a minute, rather than going on at a time.
    pub per_minute: bool,
    pub repeats: usize,
    pub first_seed: u64,
    pub course: Course,
    /// More warm-up after a switch, when caches are empty.
    pub fill: Duration,
    pub saturation: Saturation,
    /// How late the generator's timers may be.
    pub lag_limit: Duration,
}

/// All levels of one mode, under one load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub mode: String,
    pub repeat: u64,
    pub levels: Vec<usize>,
}

impl Stretch {
    /// The level that one comes from, unless it is the first.
    pub(super) fn before(&self, level: usize) -> Option<usize> {
        let at = self.levels.iter().position(|one| *one == level)?;
        self.levels.get(at.checked_sub(1)?).copied()
    }

    /// Levels that are there.
    pub(super) fn done(&self, set: &Set) -> Vec<usize> {
        let ours = |cell: &&crate::results::Cell| cell.mode == self.mode && cell.repeat == self.repeat;
        set.cells.iter().filter(ours).map(|cell| cell.level).collect()
    }

    /// The level that was too much, of those that are there, and what showed it.
    pub(super) fn too_much(&self, set: &Set) -> Option<(usize, String)> {
        let ours = set.cells.iter().filter(|cell| cell.mode == self.mode && cell.repeat == self.repeat);
        let saturated = ours.filter_map(|cell| Some((cell.level, cell.saturated.clone()?)));
        saturated.min_by_key(|(level, _)| *level)
    }
}

impl Plan {
    /// Forwards and backwards in turn: what drifts with time favours nobody.
    pub fn stretches(&self) -> Vec<Stretch> {
        let of_repeat = |n: usize| {
            let mut modes = self.modes.clone();
            if n % 2 == 1 {
                modes.reverse();
            }
            let repeat = self.first_seed.wrapping_add(n as u64);
            modes.into_iter().map(move |mode| Stretch { mode, repeat, levels: self.levels.clone() })
        };
        (0..self.repeats).flat_map(of_repeat).collect()
    }

    pub fn cells(&self) -> usize {
        self.modes.len() * self.levels.len() * self.repeats
    }

    pub fn levels_are(&self) -> &'static str {
        if self.per_minute { "conversations a minute" } else { "conversations at a time" }
    }

    /// From nothing to the end.
    pub fn length(&self) -> Duration {
        let stretch = self.fill + self.course.length() * self.levels.len() as u32;
        stretch * (self.modes.len() * self.repeats) as u32
    }

    /// Of what is not there yet, the stretch that is under way counting only its levels that have not begun.
    pub(super) fn left_after(&self, set: &Set, now: &Stretch) -> Duration {
        let of = |stretch: &Stretch| {
            let open = self.levels.len() - stretch.done(set).len().min(self.levels.len());
            let begun = usize::from(stretch == now && open > 0);
            let fill = if stretch == now || open == 0 { Duration::ZERO } else { self.fill };
            fill + self.course.length() * (open - begun) as u32
        };
        self.stretches().iter().map(of).sum()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::results::tests::cell;

    fn plan() -> Plan {
        let seconds = Duration::from_secs;
        Plan {
            modes: vec!["round_robin".to_owned(), "kv".to_owned()],
            mode_given: true,
            levels: vec![60, 80],
            per_minute: false,
            repeats: 3,
            first_seed: 1,
            course: Course { warm_up: seconds(60), window: seconds(300), looks: 3, look_back: seconds(60) },
            fill: seconds(60),
            saturation: Saturation::default(),
            lag_limit: crate::live::LAG_LIMIT,
        }
    }

    #[test]
    fn modes_take_turns_in_going_first() {
        let order: Vec<(String, u64)> =
            plan().stretches().into_iter().map(|stretch| (stretch.mode, stretch.repeat)).collect();
        let expected =
            [("round_robin", 1), ("kv", 1), ("kv", 2), ("round_robin", 2), ("round_robin", 3), ("kv", 3)];
        assert_eq!(order, expected.map(|(mode, repeat)| (mode.to_owned(), repeat)));
        assert_eq!((plan().cells(), plan().length().as_secs()), (12, 6 * (60 + 720)));
    }

    #[test]
    fn what_is_left_shrinks_to_nothing() {
        let (plan, mut results) = (plan(), crate::results::tests::sweep());
        let set = &mut results.sets[0];
        set.cells.clear();
        let stretches = plan.stretches();
        // All but the fill and the cell that is under way.
        assert_eq!(plan.left_after(set, &stretches[0]), plan.length() - Duration::from_secs(420));
        for stretch in &stretches {
            for level in &stretch.levels {
                set.cells.push(cell(&stretch.mode, *level, stretch.repeat, 500.0, 2000.0));
            }
        }
        assert_eq!(plan.left_after(set, &stretches[5]), Duration::ZERO);
    }
}
