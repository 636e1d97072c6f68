//! Where requests wait when no worker may take another.
//!
//! One for each base model. Its adapters are names of their own, because their workers may be full while others are
//! not: a name that finds no room is passed over until somebody leaves again. Whoever leaves a worker calls the next;
//! who is called places itself, and calls the next whether that worked or not, as long as there are names that have not
//! looked in vain. Newcomers go to the end while anybody of their name is before them, so that nobody is overtaken by
//! one of its own class and name. Bounded in number and in time; a client that goes away takes its place along, and its
//! turn goes to the next.
//!
//! No call is lost: one that finds everybody called already is noted, and whoever finds no room looks again if there
//! was one since.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::fair_queue::{FairQueue, Place, Priority};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitingRules {
    /// Requests that may wait.
    pub most: usize,
    /// How long one may.
    pub patience: Duration,
    /// Shares of what comes free: high, normal, low.
    pub weights: [f64; 3],
}

/// Why a request does not wait (any longer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    #[error("{0} requests are waiting already")]
    Full(usize),
    #[error("no worker had room within {0} ms")]
    TooLong(u64),
}

impl NoPlace {
    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full(_) => "full",
            Self::TooLong(_) => "timeout",
        }
    }
}

/// Called at least this often, whether somebody left or not: workers also come, and turn out larger than thought.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct WaitingRoom {
    rules: WaitingRules,
    /// Who waits or is called; read without the lock, because mostly there is nobody.
    present: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: FairQueue<Waiter>,
    /// Called, and not yet back or gone.
    called: usize,
    /// Calls from outside so far, heard or not.
    calls: u64,
    last_call: Instant,
    /// Names that looked in vain since the last of them.
    in_vain: Vec<u64>,
    /// Who waits or is called, by name.
    names: HashMap<u64, usize>,
}

#[derive(Debug)]
struct Waiter {
    call: oneshot::Sender<()>,
    name: u64,
    since: Instant,
}

/// For people and metrics, by priority.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    pub requests: usize,
    pub oldest: Duration,
}

impl WaitingRoom {
    pub fn new(rules: WaitingRules) -> Arc<Self> {
        let inner = Inner {
            queue: FairQueue::new(rules.weights),
            called: 0,
            calls: 0,
            last_call: Instant::now(),
            in_vain: Vec::new(),
            names: HashMap::new(),
        };
        Arc::new(Self { rules, present: AtomicUsize::new(0), inner: Mutex::new(inner) })
    }

    /// Whether somebody of that name is before whoever comes now.
    fn occupied(&self, name: u64) -> bool {
        self.present.load(Ordering::SeqCst) > 0 && self.inner.lock().names.contains_key(&name)
    }

    /// Has a request for the model of this name placed by `place`, at once or when its turn comes; `place` is asked again
    /// each time, and says none while there is no room. Also how long it waited.
    pub async fn placed<T>(
        self: &Arc<Self>,
        name: u64,
        priority: Priority,
        mut place: impl FnMut() -> Option<T>,
    ) -> Result<(T, Duration), NoPlace> {
        if !self.occupied(name)
            && let Some(placed) = place()
        {
            return Ok((placed, Duration::ZERO));
        }
        let since = Instant::now();
        let deadline = since + self.rules.patience;
        let late = || NoPlace::TooLong(self.rules.patience.as_millis() as u64);
        let mut turn = self.join(name, priority, since)?;
        loop {
            // Counted from the last call and not from now: whoever wakes a moment too early must not sleep as long again.
            let look_again = deadline.min(self.inner.lock().last_call + LOOK_AGAIN);
            tokio::select! {
                biased;
                _ = &mut turn.call => turn.called = true,
                () = tokio::time::sleep_until(look_again) => {
                    if Instant::now() >= deadline {
                        return Err(late());
                    }
                    // Whoever is first is called, which may be somebody else.
                    if self.inner.lock().last_call.elapsed() >= LOOK_AGAIN {
                        self.call_next();
                    }
                    continue;
                }
            }
            loop {
                let calls = self.inner.lock().calls;
                if let Some(placed) = place() {
                    // There may be room for more than one.
                    turn.used = true;
                    drop(turn);
                    self.call_next();
                    return Ok((placed, since.elapsed()));
                }
                if turn.waits_on(since, calls) {
                    break;
                }
                if Instant::now() >= deadline {
                    return Err(late());
                }
                tokio::task::yield_now().await;
            }
        }
    }

    fn join(self: &Arc<Self>, name: u64, priority: Priority, since: Instant) -> Result<Turn, NoPlace> {
        let (sender, call) = oneshot::channel();
        let mut inner = self.inner.lock();
        let present = inner.queue.len() + inner.called;
        if present >= self.rules.most {
            return Err(NoPlace::Full(present));
        }
        let place = inner.queue.join(priority, Waiter { call: sender, name, since });
        let before = inner.names.entry(name).or_default();
        *before += 1;
        let alone = *before == 1;
        self.note(&inner);
        drop(inner);
        // Alone, it might have come just after the last one left.
        if alone {
            self.call_next();
        }
        Ok(Turn { room: self.clone(), place, name, call, called: false, used: false })
    }

    fn note(&self, inner: &Inner) {
        self.present.store(inner.queue.len() + inner.called, Ordering::SeqCst);
    }

    /// There may be room: whoever is next may look.
    pub fn call_next(&self) {
        if self.present.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut inner = self.inner.lock();
        inner.calls += 1;
        inner.last_call = Instant::now();
        inner.in_vain.clear();
        self.call(&mut inner);
    }

    /// The next whose name has not looked in vain.
    fn call(&self, inner: &mut Inner) {
        let Inner { queue, in_vain, called, .. } = inner;
        while let Some((_, waiter)) = queue.call(|waiter| !in_vain.contains(&waiter.name)) {
            // One that is just going away does not hear it.
            if waiter.call.send(()).is_ok() {
                *called += 1;
                break;
            }
        }
        self.note(inner);
    }

    /// Who waits, by priority.
    pub fn waiting(&self) -> [Waiting; 3] {
        let inner = self.inner.lock();
        Priority::ALL.map(|priority| {
            let waiters = inner.queue.waiting(priority);
            let requests = waiters.len();
            let oldest = waiters.map(|waiter| waiter.since.elapsed()).max().unwrap_or_default();
            Waiting { requests, oldest }
        })
    }
}

/// A place in the room. Given up when it is dropped.
#[derive(Debug)]
struct Turn {
    room: Arc<WaitingRoom>,
    place: Place,
    name: u64,
    call: oneshot::Receiver<()>,
    called: bool,
    used: bool,
}

impl Turn {
    /// Called for nothing: back to where it was, and somebody of another name may look. False when there was a call since,
    /// and it had better look again itself.
    fn waits_on(&mut self, since: Instant, calls: u64) -> bool {
        let (sender, call) = oneshot::channel();
        let mut inner = self.room.inner.lock();
        if inner.calls != calls {
            return false;
        }
        inner.called -= 1;
        inner.queue.rejoin(self.place, Waiter { call: sender, name: self.name, since });
        if !inner.in_vain.contains(&self.name) {
            inner.in_vain.push(self.name);
        }
        self.room.call(&mut inner);
        drop(inner);
        (self.call, self.called) = (call, false);
        true
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut inner = self.room.inner.lock();
        let waited = !self.called && inner.queue.leave(self.place).is_some();
        if !waited {
            inner.called -= 1;
        }
        if let Some(count) = inner.names.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                inner.names.remove(&self.name);
            }
        }
        // Called and gone without having used it: the turn is the next one's.
        let unused = !waited && !self.used;
        if unused {
            inner.queue.refund(self.place);
        }
        self.room.note(&inner);
        drop(inner);
        if unused {
            self.room.call_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;
    use tokio::task::LocalSet;

    use super::*;

    const RULES: WaitingRules =
        WaitingRules { most: 1000, patience: Duration::from_secs(60), weights: [4.0, 2.0, 1.0] };

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        LocalSet::new().block_on(&runtime.unwrap(), future)
    }

    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn somebody_looks_often_enough_however_waiters_come_and_give_up() {
        run(async {
            let room = WaitingRoom::new(WaitingRules { patience: Duration::from_millis(419), ..RULES });
            let looks: Rc<std::cell::RefCell<Vec<Instant>>> = Rc::default();
            let waiters: Vec<_> = (0..60)
                .map(|n| {
                    let (room, looks) = (room.clone(), looks.clone());
                    tokio::task::spawn_local(async move {
                        tokio::time::sleep(Duration::from_millis(67 * n)).await;
                        let look = || -> Option<()> {
                            looks.borrow_mut().push(Instant::now());
                            None
                        };
                        let _ = room.placed(0, Priority::Normal, look).await;
                    })
                })
                .collect();
            for waiter in waiters {
                waiter.await.unwrap();
            }
            let longest = looks.borrow().windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(longest <= Some(LOOK_AGAIN + Duration::from_millis(1)), "{longest:?}");
        });
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_in_time() {
        run(async {
            let room = WaitingRoom::new(WaitingRules { most: 2, patience: Duration::from_secs(3), ..RULES });
            let never = || -> Option<()> { None };
            let waiters: Vec<_> = (0..2)
                .map(|_| {
                    let room = room.clone();
                    tokio::task::spawn_local(async move {
                        room.placed(0, Priority::Normal, never).await.map(|_| ())
                    })
                })
                .collect();
            settle().await;
            assert_eq!(room.placed(0, Priority::High, never).await.map(|_| ()), Err(NoPlace::Full(2)));
            assert_eq!(room.waiting()[1].requests, 2);
            for waiter in waiters {
                assert_eq!(waiter.await.unwrap(), Err(NoPlace::TooLong(3000)));
            }
            assert_eq!(room.waiting(), [Waiting::default(); 3]);
            assert!(!room.occupied(0));
        });
    }

    #[test]
    fn a_client_that_leaves_takes_its_place_along_and_hands_on_its_turn() {
        run(async {
            let room = WaitingRoom::new(RULES);
            let free = Rc::new(Cell::new(0));
            let take = |free: Rc<Cell<i32>>| move || (free.get() > 0).then(|| free.set(free.get() - 1));
            let spawn = || {
                let (room, take) = (room.clone(), take(free.clone()));
                tokio::task::spawn_local(async move { room.placed(0, Priority::Normal, take).await })
            };
            let [first, second] = [spawn(), spawn()];
            settle().await;
            assert_eq!(room.waiting()[1].requests, 2);
            // Called and gone before it looks.
            free.set(1);
            room.call_next();
            first.abort();
            settle().await;
            assert!(second.await.unwrap().is_ok());
            assert!(!room.occupied(0));
        });
    }

    /// Two names, one of which has no room: the other's are called all the same, whatever their order.
    #[test]
    fn a_name_without_room_holds_up_nobody() {
        run(async {
            let room = WaitingRoom::new(RULES);
            let free = Rc::new(Cell::new(0));
            let spawn = |name: u64, has_room: Rc<Cell<i32>>| {
                let room = room.clone();
                let take =
                    move || (name == 1 && has_room.get() > 0).then(|| has_room.set(has_room.get() - 1));
                tokio::task::spawn_local(async move { room.placed(name, Priority::High, take).await.is_ok() })
            };
            let stuck: Vec<_> = (0..3).map(|_| spawn(2, free.clone())).collect();
            settle().await;
            let others: Vec<_> = (0..3).map(|_| spawn(1, free.clone())).collect();
            settle().await;
            assert_eq!(room.waiting()[0].requests, 6);
            free.set(2);
            room.call_next();
            settle().await;
            assert_eq!(room.waiting()[0].requests, 4);
            // One of the name that has room comes after those who wait, one of no waiting name does not.
            free.set(1);
            assert!(!room.occupied(3) && room.occupied(1));
            room.call_next();
            settle().await;
            for other in others {
                assert!(other.await.unwrap());
            }
            stuck.iter().for_each(|task| task.abort());
            settle().await;
            assert!(!room.occupied(2) && room.inner.lock().names.is_empty());
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// Whatever comes, ends and goes away: once everything has settled, nobody waits while a slot is free, and every slot
        /// taken is somebody's.
        #[test]
        fn nobody_waits_while_there_is_room(
            slots in 1_usize..6,
            steps in prop::collection::vec((0_u8..4, 0_usize..3, any::<prop::sample::Index>()), 1..120),
        ) {
            run(async move {
                let room = WaitingRoom::new(RULES);
                let taken = Rc::new(Cell::new(0_usize));
                let mut requests = Vec::new();
                for (step, class, index) in steps {
                    match step {
                        0 | 1 => {
                            let (room, taken) = (room.clone(), taken.clone());
                            let (end, ended) = oneshot::channel::<()>();
                            let task = tokio::task::spawn_local(async move {
                                let take = || (taken.get() < slots).then(|| Slot(taken.clone(), room.clone())).inspect(|_| {
                                    taken.set(taken.get() + 1);
                                });
                                let _slot = room.placed(0, Priority::ALL[class], take).await.unwrap();
                                let _ = ended.await;
                            });
                            requests.push((task, end));
                        }
                        // Over, if it was placed; its client goes away.
                        2 if !requests.is_empty() => {
                            let (task, end) = requests.swap_remove(index.index(requests.len()));
                            let _ = end.send(());
                            drop(task);
                        }
                        3 if !requests.is_empty() => {
                            requests.swap_remove(index.index(requests.len())).0.abort();
                        }
                        _ => {}
                    }
                    settle().await;
                    let waiting: usize = room.waiting().iter().map(|class| class.requests).sum();
                    assert!(taken.get() <= slots);
                    assert!(waiting == 0 || taken.get() == slots, "{waiting} wait, {} of {slots} taken", taken.get());
                }
                requests.iter().for_each(|(task, _)| task.abort());
                settle().await;
                assert_eq!((taken.get(), room.occupied(0)), (0, false));
            });
        }
    }

    /// On threads of its own: a call between a vain look and going back to wait is not lost.
    #[test]
    fn no_call_is_lost() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build();
        runtime.unwrap().block_on(async {
            let room = WaitingRoom::new(WaitingRules { most: 100_000, ..RULES });
            let free = Arc::new(AtomicUsize::new(2));
            let take = |free: &AtomicUsize| {
                let less = |free: usize| free.checked_sub(1);
                free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).ok().map(|_| ())
            };
            let requests: Vec<_> = (0..2_000)
                .map(|n| {
                    let (room, free) = (room.clone(), free.clone());
                    tokio::spawn(async move {
                        let placed = room.placed(0, Priority::ALL[n % 3], || take(&free)).await;
                        tokio::task::yield_now().await;
                        free.fetch_add(1, Ordering::SeqCst);
                        room.call_next();
                        placed.map(|(_, waited)| waited)
                    })
                })
                .collect();
            let mut waits = Vec::new();
            for request in requests {
                waits.push(request.await.unwrap().unwrap());
            }
            assert!(!room.occupied(0));
            // Each lost call would cost a quarter of a second; all of them together took a moment.
            assert!(waits.iter().max().is_some_and(|longest| *longest < Duration::from_secs(5)));
        });
    }

    struct Slot(Rc<Cell<usize>>, Arc<WaitingRoom>);

    impl Drop for Slot {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
            self.1.call_next();
        }
    }
}
