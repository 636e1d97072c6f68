//! How workers are chosen, and how a cost is weighed.

/// How workers are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The next worker in rotation, whatever it holds: the baseline.
    RoundRobin,
    /// Any.
    Random,
    /// The one with fewest requests.
    LeastLoaded,
    /// Of two drawn ones the one with fewer requests.
    PowerOfTwo,
    /// Always the same one for a session, for as long as it is there; a new session goes to the least loaded.
    Session,
    /// The cheapest by what it holds and what it is busy with.
    Kv(Weights),
}

/// How a cost is made: `overlap * prefill_blocks + decode_blocks + request * active_requests`, and `waiting` for each
/// request that waits for a slot there, less `home` where the session was last. Of `prefill_blocks` those that are the
/// request's own count `own` times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    pub overlap: f64,
    /// Blocks to compute that would not be there without the request, against those that wait ahead of it anyway. It waits
    /// for both, and for the former everybody waits who is answered there.
    pub own: f64,
    /// Blocks that a request counts for, whatever its prompt. Requests that share a prompt add few blocks to a worker,
    /// and each of them a sequence to every step.
    pub request: f64,
    /// Blocks that each request beyond a worker's slots counts for besides.
    pub waiting: f64,
    /// Blocks that the worker of the session's last request is ahead by. What a conversation was answered there is cached
    /// there, and what will be asked next is best asked there too.
    pub home: f64,
    /// Above zero workers are drawn, the cheaper the likelier; at zero the cheapest wins.
    pub temperature: f64,
    /// Whether a worker whose slots are all taken is passed over while another has room, unless it is worth waiting for.
    pub slot_guard: bool,
    /// Whether prefill that waits ahead dwindles with time, as it is computed, or counts whole until its first token.
    pub drains: bool,
    /// Whether equal costs go to whoever holds least.
    pub smaller_tree: bool,
}

/// Weights somebody chose; a policy's own where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// Times the policy's own: 1 changes nothing, whatever the policy.
    pub overlap: f64,
    pub request: Option<f64>,
    pub waiting: Option<f64>,
    pub home: Option<f64>,
    pub temperature: f64,
    pub slot_guard: Option<bool>,
}

impl Default for Said {
    fn default() -> Self {
        Self { overlap: 1.0, request: None, waiting: None, home: None, temperature: 0.0, slot_guard: None }
    }
}

impl Weights {
    /// The plain cost of the reference (Dynamo 0.9): blocks alone, no slots.
    pub const DYNAMO: Self = Self {
        overlap: 1.0,
        own: 1.0,
        request: 0.0,
        waiting: 0.0,
        home: 0.0,
        temperature: 0.0,
        slot_guard: false,
        drains: false,
        smaller_tree: true,
    };
    /// Ours, chosen over several workloads (see `benches/POLICY.md`).
    pub const KVLANE: Self = Self {
        overlap: 32.0,
        own: 1.5,
        request: 360.0,
        waiting: 240.0,
        home: 1200.0,
        temperature: 0.0,
        slot_guard: true,
        drains: true,
        smaller_tree: false,
    };

    /// These, with what was said instead.
    #[must_use]
    pub fn but(self, said: Said) -> Self {
        Self {
            overlap: self.overlap * said.overlap,
            request: said.request.unwrap_or(self.request),
            waiting: said.waiting.unwrap_or(self.waiting),
            home: said.home.unwrap_or(self.home),
            temperature: said.temperature,
            slot_guard: said.slot_guard.unwrap_or(self.slot_guard),
            ..self
        }
    }

    /// For requests that others are compared with: the one with fewest requests.
    #[must_use]
    pub fn by_load_alone(self) -> Self {
        Self { overlap: 0.0, home: 0.0, request: 1e9, temperature: 0.0, ..self }
    }

    /// As they are, or leaning towards load: `lean` 1 changes nothing, 0 leaves load alone.
    #[must_use]
    pub fn leaning(self, lean: f64) -> Self {
        let (request, waiting) = (Self::KVLANE.request, Self::KVLANE.waiting);
        Self {
            overlap: self.overlap * lean,
            home: self.home * lean,
            request: self.request.max((1.0 - lean) * request),
            waiting: self.waiting.max((1.0 - lean) * waiting),
            slot_guard: self.slot_guard || lean < 1.0,
            ..self
        }
    }
}

impl Policy {
    /// Whether draws are turns, counted up, instead of random bits.
    pub fn takes_turns(&self) -> bool {
        matches!(self, Self::RoundRobin)
    }

    /// Whether how much a worker holds decides between equals.
    pub fn compares_trees(&self) -> bool {
        matches!(self, Self::Kv(Weights { smaller_tree: true, .. }))
    }

    /// Whether what workers have cached matters.
    pub fn sees_caches(&self) -> bool {
        matches!(self, Self::Kv(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_takes_the_place_of_a_policys_own() {
        assert_eq!(Weights::KVLANE.but(Said::default()), Weights::KVLANE);
        let said = Said { overlap: 2.0, request: Some(5.0), temperature: 0.5, ..Said::default() };
        let said = Weights::DYNAMO.but(said);
        assert_eq!((said.overlap, said.request, said.waiting, said.temperature), (2.0, 5.0, 0.0, 0.5));
        // Leaning takes the cache's weight away, and gives requests some where they have none.
        assert_eq!(Weights::KVLANE.leaning(1.0), Weights::KVLANE);
        let load = Weights::DYNAMO.leaning(0.0);
        assert_eq!((load.overlap, load.home, load.request, load.slot_guard), (0.0, 0.0, 360.0, true));
    }
}
