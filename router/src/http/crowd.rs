//! How many connections each address has, so that no one takes all places.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

/// Bounded by the connections there are.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// None when nothing is counted.
    most: Option<usize>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection, counted for as long as this lives.
#[derive(Debug)]
pub(super) struct Guest(Option<(Arc<Crowd>, IpAddr)>);

impl Crowd {
    /// 0 for as many as they like.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: (most > 0).then_some(most), ..Self::default() })
    }

    /// None when that address has as many as it may.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Guest> {
        let Some(most) = self.most else { return Some(Guest(None)) };
        let address = address.to_canonical();
        let mut by_address = self.by_address.lock();
        let count = by_address.entry(address).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Guest(Some((self.clone(), address))))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let Some((crowd, address)) = &self.0 else { return };
        let mut by_address = crowd.by_address.lock();
        if let Some(count) = by_address.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_and_nothing_is_kept_of_who_left() {
        let crowd = Crowd::new(2);
        let [one, mapped, other] =
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let guests = (crowd.enter(one), crowd.enter(mapped));
        assert!(guests.0.is_some() && guests.1.is_some() && crowd.enter(one).is_none());
        assert!(crowd.enter(other).is_some());
        drop(guests);
        assert!(crowd.by_address.lock().is_empty() && crowd.enter(one).is_some());
        let open = Crowd::new(0);
        let many: Vec<_> = (0..100).map(|_| open.enter(one)).collect();
        assert!(many.iter().all(Option::is_some));
    }
}
