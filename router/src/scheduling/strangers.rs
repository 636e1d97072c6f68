//! Requests an engine has that neither we nor other routers placed there, as far as its own counts tell.

/// Counts are read at slightly different times, so the lesser of two looks is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    last: usize,
    believed: usize,
}

impl Strangers {
    /// The engine has so many requests, `known` of them placed by routers. Later looks make it right again.
    pub fn observe(&mut self, requests: usize, known: usize) {
        let strangers = requests.saturating_sub(known);
        self.believed = strangers.min(self.last);
        self.last = strangers;
    }

    /// Nothing is known of it (any more).
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    pub fn requests(self) -> usize {
        self.believed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_twice_is_believed() {
        let mut strangers = Strangers::default();
        for (requests, known, believed) in [(10, 8, 0), (12, 8, 2), (9, 8, 1), (3, 8, 0), (usize::MAX, 0, 0)]
        {
            strangers.observe(requests, known);
            assert_eq!(strangers.requests(), believed);
        }
        strangers.forget();
        assert_eq!(strangers.requests(), 0);
    }
}
