//! A compact set of slots for tree nodes.
//!
//! Most nodes are held by one worker, or by a few that sit in one window of 64 slots: those sets take no
//! memory of their own. Wider sets are one word per window.

use crate::worker::Slot;

const WINDOW: u32 = u64::BITS;

#[derive(Clone, Debug)]
pub(crate) enum WorkerSet {
    /// All members lie in one window. Empty when `bits` is zero.
    Window { window: u32, bits: u64 },
    /// Members lie in at least two windows; the last word is never zero.
    Wide(Box<[u64]>),
}

impl Default for WorkerSet {
    fn default() -> Self {
        Self::Window { window: 0, bits: 0 }
    }
}

impl WorkerSet {
    pub(crate) fn single(slot: Slot) -> Self {
        Self::Window { window: slot / WINDOW, bits: 1 << (slot % WINDOW) }
    }

    #[inline]
    pub(crate) fn word(&self, window: usize) -> u64 {
        match self {
            Self::Window { window: only, bits } if *only as usize == window => *bits,
            Self::Window { .. } => 0,
            Self::Wide(words) => words.get(window).copied().unwrap_or(0),
        }
    }

    /// How many words a reader must look at to have seen every member.
    pub(crate) fn word_count(&self) -> usize {
        match self {
            Self::Window { bits: 0, .. } => 0,
            Self::Window { window, .. } => *window as usize + 1,
            Self::Wide(words) => words.len(),
        }
    }

    #[inline]
    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.word((slot / WINDOW) as usize) >> (slot % WINDOW) & 1 == 1
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Window { bits: 0, .. })
    }

    pub(crate) fn is_single(&self) -> bool {
        matches!(self, Self::Window { bits, .. } if bits.is_power_of_two())
    }

    pub(crate) fn insert(&mut self, slot: Slot) {
        let (at, bit) = (slot / WINDOW, 1 << (slot % WINDOW));
        match self {
            Self::Window { bits: 0, .. } => *self = Self::single(slot),
            Self::Window { window, bits } if *window == at => *bits |= bit,
            Self::Wide(words) if (at as usize) < words.len() => words[at as usize] |= bit,
            _ => {
                let mut words: Vec<u64> = (0..self.word_count()).map(|window| self.word(window)).collect();
                words.resize(words.len().max(at as usize + 1), 0);
                words[at as usize] |= bit;
                *self = Self::Wide(words.into_boxed_slice());
            }
        }
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        let (at, bit) = ((slot / WINDOW) as usize, 1_u64 << (slot % WINDOW));
        match self {
            Self::Window { window, bits } if *window as usize == at => *bits &= !bit,
            Self::Window { .. } => {}
            Self::Wide(words) => {
                let Some(word) = words.get_mut(at) else { return };
                *word &= !bit;
                if *word == 0 {
                    *self = Self::from_words(words);
                }
            }
        }
    }

    /// The set in its one proper form: as narrow as its members allow.
    fn from_words(words: &[u64]) -> Self {
        let mut used = words.iter().enumerate().filter(|(_, word)| **word != 0);
        match (used.next(), used.next_back()) {
            (None, _) => Self::default(),
            (Some((window, bits)), None) => Self::Window { window: window as u32, bits: *bits },
            (Some(_), Some((last, _))) => Self::Wide(words[..=last].into()),
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        (0..self.word_count()).map(|window| self.word(window).count_ones() as usize).sum()
    }

    pub(crate) fn is_subset(&self, other: &Self) -> bool {
        (0..self.word_count()).all(|window| self.word(window) & !other.word(window) == 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.word_count()).flat_map(|window| {
            let mut bits = self.word(window);
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some(window as u32 * WINDOW + bit)
            })
        })
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Window { .. } => 0,
            Self::Wide(words) => size_of_val::<[u64]>(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_in_its_narrowest_form(changes in prop::collection::vec((0_u32..200, any::<bool>()), 0..60)) {
            let mut set = WorkerSet::default();
            let mut model = BTreeSet::new();
            for (slot, add) in changes {
                if add { set.insert(slot); model.insert(slot); } else { set.remove(slot); model.remove(&slot); }
                prop_assert!(set.iter().eq(model.iter().copied()));
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!((set.is_empty(), set.is_single()), (model.is_empty(), model.len() == 1));
                prop_assert!((0..200).all(|slot| set.contains(slot) == model.contains(&slot)));
                let windows: BTreeSet<_> = model.iter().map(|slot| slot / 64).collect();
                prop_assert_eq!(matches!(set, WorkerSet::Wide(_)), windows.len() > 1);
                let words = model.last().map_or(0, |last| *last as usize / 64 + 1);
                prop_assert_eq!(set.word_count(), words);
            }
        }

        #[test]
        fn subsets_are_told(a in prop::collection::btree_set(0_u32..150, 0..5), b in prop::collection::btree_set(0_u32..150, 0..9)) {
            let build = |slots: &BTreeSet<u32>| slots.iter().fold(WorkerSet::default(), |mut set, slot| { set.insert(*slot); set });
            prop_assert_eq!(build(&a).is_subset(&build(&b)), a.is_subset(&b));
        }
    }
}
