//! Who is next, when many wait: classes share what comes free by their weights, and within a class the first come is
//! the first served.
//!
//! A class's `due` grows by 1 / weight with every turn it gets, and the class whose is least has the next turn. A class
//! that was empty starts from where the others are, so that nothing is saved up. Nobody starves: every turn of another
//! class brings one's own nearer.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// Its name, whatever the capitals.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.name().eq_ignore_ascii_case(word.trim()))
    }

    /// Engines take a number, the least going first and 0 being usual.
    pub fn of_number(number: i32) -> Self {
        match number {
            ..0 => Self::High,
            0 => Self::Normal,
            1.. => Self::Low,
        }
    }

    /// The number engines take for it.
    pub fn number(self) -> i32 {
        match self {
            Self::High => -1,
            Self::Normal => 0,
            Self::Low => 1,
        }
    }

    /// Whether it is the more urgent one.
    pub fn before(self, other: Self) -> bool {
        self.number() < other.number()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    class: usize,
    number: u64,
}

impl Place {
    pub fn priority(self) -> Priority {
        Priority::ALL[self.class]
    }
}

#[derive(Debug)]
struct Class<T> {
    weight: f64,
    due: f64,
    waiting: BTreeMap<u64, T>,
}

#[derive(Debug)]
pub struct FairQueue<T> {
    classes: [Class<T>; 3],
    numbers: u64,
    /// The `due` of the last turn.
    now: f64,
}

impl<T> FairQueue<T> {
    /// Weights by priority, each above zero.
    pub fn new(weights: [f64; 3]) -> Self {
        let class =
            |weight: f64| Class { weight: weight.max(f64::MIN_POSITIVE), due: 0.0, waiting: BTreeMap::new() };
        Self { classes: weights.map(class), numbers: 0, now: 0.0 }
    }

    /// Waits behind everybody of its class.
    pub fn join(&mut self, priority: Priority, waiter: T) -> Place {
        self.numbers += 1;
        let place = Place { class: priority as usize, number: self.numbers };
        self.insert(place, waiter);
        place
    }

    /// Waits where it was before it was called.
    pub fn rejoin(&mut self, place: Place, waiter: T) {
        self.refund(place);
        self.insert(place, waiter);
    }

    /// A turn came to nothing: its class is not to pay for it.
    pub fn refund(&mut self, place: Place) {
        let class = &mut self.classes[place.class];
        class.due -= 1.0 / class.weight;
    }

    fn insert(&mut self, place: Place, waiter: T) {
        let class = &mut self.classes[place.class];
        if class.waiting.is_empty() {
            class.due = class.due.max(self.now);
        }
        class.waiting.insert(place.number, waiter);
    }

    /// Whose turn it is, of those who may come.
    pub fn call(&mut self, may_come: impl Fn(&T) -> bool) -> Option<(Place, T)> {
        let first =
            |class: &Class<T>| class.waiting.iter().find(|(_, waiter)| may_come(waiter)).map(|(n, _)| *n);
        let firsts =
            self.classes.iter().enumerate().filter_map(|(at, class)| Some((at, class.due, first(class)?)));
        let (at, _, number) = firsts.min_by(|(_, one, _), (_, other, _)| one.total_cmp(other))?;
        let class = &mut self.classes[at];
        let waiter = class.waiting.remove(&number)?;
        self.now = class.due;
        class.due += 1.0 / class.weight;
        Some((Place { class: at, number }, waiter))
    }

    /// Does not wait any more. None when it was called already.
    pub fn leave(&mut self, place: Place) -> Option<T> {
        self.classes[place.class].waiting.remove(&place.number)
    }

    pub fn len(&self) -> usize {
        self.classes.iter().map(|class| class.waiting.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.waiting.is_empty())
    }

    pub fn waiting(&self, priority: Priority) -> impl ExactSizeIterator<Item = &T> {
        self.classes[priority as usize].waiting.values()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn classes_share_by_weight_and_nobody_jumps_the_queue_within_one() {
        let mut queue = FairQueue::new([4.0, 2.0, 1.0]);
        for n in 0..70 {
            for priority in Priority::ALL {
                queue.join(priority, n);
            }
        }
        let mut served: [Vec<i32>; 3] = Default::default();
        for _ in 0..70 {
            let (place, n) = queue.call(|_| true).unwrap();
            served[place.priority() as usize].push(n);
        }
        let counts: Vec<usize> = served.iter().map(Vec::len).collect();
        assert!(counts.iter().zip([40, 20, 10]).all(|(got, due)| got.abs_diff(due) <= 1), "{counts:?}");
        assert!(served.iter().all(|class| class.is_sorted()));
        // A class that comes late has saved nothing up.
        let mut queue = FairQueue::new([1.0, 1.0, 1.0]);
        for n in 0..50 {
            queue.join(Priority::Low, n);
        }
        let first: Vec<_> = (0..20).map_while(|_| queue.call(|_| true)).collect();
        assert_eq!(first.len(), 20);
        for n in 0..50 {
            queue.join(Priority::High, n);
        }
        let high = (0..20).filter(|_| queue.call(|_| true).unwrap().0.priority() == Priority::High).count();
        assert!((9..=11).contains(&high), "{high} of 20");
    }

    proptest! {
        /// While several classes wait, each gets its share of the turns to within one turn of every class; within a class the
        /// order is that of coming, whoever leaves or is put back in between.
        #[test]
        fn the_queue_is_fair(
            weights in prop::array::uniform3(0.2_f64..8.0),
            steps in prop::collection::vec((0_u8..8, 0_usize..3, any::<prop::sample::Index>()), 1..400),
        ) {
            let mut queue = FairQueue::new(weights);
            let mut places: Vec<Place> = Vec::new();
            // Turns since all three were last waiting.
            let mut turns = [0.0_f64; 3];
            for (step, class, index) in steps {
                match step {
                    0..=3 => places.push(queue.join(Priority::ALL[class], ())),
                    4..=5 => {
                        let all = Priority::ALL.iter().all(|class| queue.waiting(*class).len() > 0);
                        let Some((place, ())) = queue.call(|_| true) else { continue };
                        let first = places.iter().filter(|other| other.class == place.class).min();
                        prop_assert_eq!(first, Some(&place), "the first come is the first served");
                        places.retain(|other| *other != place);
                        if all {
                            turns[place.class] += 1.0;
                            let sum: f64 = turns.iter().sum();
                            for (class, turns) in turns.iter().enumerate() {
                                let due = sum * weights[class] / weights.iter().sum::<f64>();
                                let slack = 2.0 + weights.iter().map(|other| weights[class] / other).sum::<f64>();
                                prop_assert!((turns - due).abs() <= slack, "{turns} turns, {due} due");
                            }
                        } else {
                            turns = [0.0; 3];
                        }
                    }
                    6 if !places.is_empty() => {
                        let place = places.swap_remove(index.index(places.len()));
                        prop_assert!(queue.leave(place).is_some());
                        turns = [0.0; 3];
                    }
                    _ => {
                        if let Some((place, ())) = queue.call(|_| true) {
                            queue.rejoin(place, ());
                        }
                    }
                }
                prop_assert_eq!(queue.len(), places.len());
            }
        }
    }
}
