//! The locks and atomics of this crate, in one place so that the `shuttle` feature can swap them for ones
//! whose schedules a test controls.

#[cfg(not(feature = "shuttle"))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

    pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};
}

#[cfg(feature = "shuttle")]
mod explored {
    pub(crate) use shuttle::sync::MutexGuard;
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
    use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

    /// Shuttle's locks speak of poisoning; ours have no such word.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a thread of the test panicked")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("a thread of the test panicked")
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("a thread of the test panicked")
        }
    }
}

#[cfg(feature = "shuttle")]
pub(crate) use explored::*;
#[cfg(not(feature = "shuttle"))]
pub(crate) use real::*;
