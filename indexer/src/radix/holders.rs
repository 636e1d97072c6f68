//! Who holds how much of one node.
//!
//! Within a node a worker holds a leading part: all of it, some first blocks, or nothing. Whoever holds all
//! of it is a bit in a set; the few that hold less are listed with their *extent*. Anything that is not a
//! leading part is put into that form by cutting the node (see [`super`]).

use super::worker_set::WorkerSet;
use crate::worker::Slot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partial {
    pub(crate) slot: Slot,
    /// At least one, less than the node's length.
    pub(crate) extent: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Holders {
    pub(crate) full: WorkerSet,
    /// Boxed because most nodes have none and there are many nodes: 8 bytes instead of 24.
    #[expect(clippy::box_collection)]
    partial: Option<Box<Vec<Partial>>>,
}

impl Holders {
    pub(crate) fn only(slot: Slot) -> Self {
        Self { full: WorkerSet::single(slot), partial: None }
    }

    pub(crate) fn partial(&self) -> &[Partial] {
        self.partial.as_deref().map_or(&[], Vec::as_slice)
    }

    /// How many leading blocks of a node of `len` blocks `slot` holds.
    pub(crate) fn extent(&self, slot: Slot, len: u32) -> u32 {
        if self.full.contains(slot) {
            return len;
        }
        self.partial().iter().find(|partial| partial.slot == slot).map_or(0, |partial| partial.extent)
    }

    pub(crate) fn set_extent(&mut self, slot: Slot, extent: u32, len: u32) {
        debug_assert!(extent <= len);
        if extent == len {
            self.full.insert(slot);
            self.drop_partial(slot);
        } else {
            self.full.remove(slot);
            if extent == 0 {
                self.drop_partial(slot);
            } else {
                self.put_partial(Partial { slot, extent });
            }
        }
    }

    fn put_partial(&mut self, new: Partial) {
        let list = self.partial.get_or_insert_default();
        match list.iter_mut().find(|partial| partial.slot == new.slot) {
            Some(partial) => *partial = new,
            None => self.push_partial(new),
        }
    }

    /// For a slot that is known not to be listed.
    fn push_partial(&mut self, new: Partial) {
        let list = self.partial.get_or_insert_default();
        if list.len() == list.capacity() {
            list.reserve_exact(1 + list.len() / 4);
        }
        list.push(new);
    }

    fn drop_partial(&mut self, slot: Slot) {
        let Some(list) = &mut self.partial else { return };
        if let Some(at) = list.iter().position(|partial| partial.slot == slot) {
            list.swap_remove(at);
            self.settle_partial();
        }
    }

    /// Gives back the list's memory when little of it is used.
    fn settle_partial(&mut self) {
        match &mut self.partial {
            Some(list) if list.is_empty() => self.partial = None,
            Some(list) if list.capacity() > 2 * list.len() + 4 => list.shrink_to_fit(),
            _ => {}
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.partial.is_none()
    }

    /// How far into a node of `len` blocks anyone reaches, `without` aside.
    pub(crate) fn reach(&self, len: u32, without: Option<Slot>) -> u32 {
        let full = match without {
            Some(slot) if self.full.contains(slot) => !self.full.is_single(),
            _ => !self.full.is_empty(),
        };
        if full {
            return len;
        }
        let others = self.partial().iter().filter(|partial| Some(partial.slot) != without);
        others.map(|partial| partial.extent).max().unwrap_or(0)
    }

    /// The holders of what lies from `at` on, were a node cut there.
    pub(crate) fn below(&self, at: u32) -> Self {
        let mut below = Self { full: self.full.clone(), partial: None };
        for partial in self.partial() {
            if partial.extent > at {
                below.push_partial(Partial { slot: partial.slot, extent: partial.extent - at });
            }
        }
        below
    }

    /// Leaves the holders of the first `at` blocks of what was longer.
    pub(crate) fn truncate(&mut self, at: u32) {
        let Some(list) = &mut self.partial else { return };
        let full = &mut self.full;
        list.retain(|partial| {
            if partial.extent >= at {
                full.insert(partial.slot);
            }
            partial.extent < at
        });
        self.settle_partial();
    }

    /// Blocks were added after the first `len`: whoever held all of them now holds a part, except `grower`.
    pub(crate) fn grow(&mut self, len: u32, grower: Option<Slot>) {
        let full =
            std::mem::replace(&mut self.full, grower.map_or_else(WorkerSet::default, WorkerSet::single));
        for slot in full.iter().filter(|slot| Some(*slot) != grower) {
            self.push_partial(Partial { slot, extent: len });
        }
    }

    /// Whether a node with these holders and its only child can be one node: nobody holds the child's first
    /// block without the whole of the parent.
    pub(crate) fn can_join(&self, child: &Self) -> bool {
        child.full.is_subset(&self.full)
            && child.partial().iter().all(|partial| self.full.contains(partial.slot))
    }

    /// Becomes the holders of a node of `len` blocks followed by `child`'s.
    pub(crate) fn join(&mut self, child: &Self, len: u32) {
        // Whoever holds something of the child holds all of the parent, so nobody is listed twice.
        let mut parent_only = std::mem::replace(&mut self.full, child.full.clone());
        for partial in child.partial() {
            parent_only.remove(partial.slot);
            self.push_partial(Partial { slot: partial.slot, extent: partial.extent + len });
        }
        for slot in parent_only.iter().filter(|slot| !child.full.contains(*slot)) {
            self.push_partial(Partial { slot, extent: len });
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let list = self.partial.as_deref();
        self.full.heap_bytes()
            + list.map_or(0, |list| size_of::<Vec<Partial>>() + list.capacity() * size_of::<Partial>())
    }
}
