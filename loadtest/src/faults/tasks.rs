//! Requests' tasks, polled by whoever drives them, so that it is known when none of them can go on.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;

type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
pub(super) struct Tasks {
    tasks: BTreeMap<usize, (Task, Waker)>,
    woken: Arc<Woken>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

/// Who can go on, in the order they were woken.
#[derive(Debug, Default)]
struct Woken {
    queue: Mutex<VecDeque<usize>>,
    some: Notify,
}

struct Bell {
    task: usize,
    woken: Arc<Woken>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut queue = self.woken.queue.lock();
        if !queue.contains(&self.task) {
            queue.push_back(self.task);
            self.woken.some.notify_one();
        }
    }
}

impl Tasks {
    pub(super) fn spawn(&mut self, number: usize, task: impl Future<Output = ()> + 'static) {
        let waker = Waker::from(Arc::new(Bell { task: number, woken: self.woken.clone() }));
        self.tasks.insert(number, (Box::pin(task), waker.clone()));
        waker.wake();
    }

    /// Drops a task wherever it is; false when it is over already.
    pub(super) fn kill(&mut self, number: usize) -> bool {
        self.tasks.remove(&number).is_some()
    }

    /// Polls the next that can go on; none when nobody can.
    pub(super) fn poll_one(&mut self) -> Option<usize> {
        let number = self.woken.queue.lock().pop_front()?;
        if let Some((task, waker)) = self.tasks.get_mut(&number) {
            let waker = waker.clone();
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks.remove(&number);
            }
        }
        Some(number)
    }

    /// Until somebody can go on.
    pub(super) async fn woken(&self) {
        self.woken.some.notified().await;
    }
}
