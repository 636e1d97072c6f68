//! The threads that serve requests: how many, and on which cores.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};

use crate::config::Server;

/// Cores have smaller numbers than this.
pub const MOST_CORES: usize = CpuSet::MAX_CPU;

/// Cores this process has, before any of its threads was tied to some.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// As many threads as were asked for. One alone needs none of what several need to share their work, and is the cheapest
/// there is.
pub fn runtime(settings: &Server) -> io::Result<Runtime> {
    let all = cores();
    let threads = match (settings.threads, settings.cores.len()) {
        (0, 0) => all,
        (0, cores) => cores,
        (threads, _) => threads,
    };
    if threads == 1 {
        let mut builder = Builder::new_current_thread();
        if let Some(core) = settings.cores.first() {
            let before = sched_getaffinity(None)?;
            tie_to(*core)?;
            // Threads for long requests go where this one could have gone.
            builder.on_thread_start(move || {
                let _ = sched_setaffinity(None, &before);
            });
        }
        return builder.enable_all().build();
    }
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all();
    if !settings.cores.is_empty() {
        let (cores, next) = (settings.cores.clone(), Arc::new(AtomicUsize::new(0)));
        // Tried once beforehand: a core that is not there stops the start.
        for core in &cores {
            tie_to(*core)?;
        }
        tie_to_all(&cores)?;
        builder.on_thread_start(move || {
            // Threads for long requests are tied to one of them as well.
            let core = cores[next.fetch_add(1, Ordering::Relaxed) % cores.len()];
            if let Err(error) = tie_to(core) {
                tracing::warn!(core, %error, "a thread cannot be tied to its core");
            }
        });
    }
    builder.build()
}

fn tie_to(core: usize) -> io::Result<()> {
    tie_to_all(&[core])
}

/// This thread runs on these cores only.
fn tie_to_all(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).map_err(|error| {
        io::Error::other(format!("`server.cores` is {cores:?}, expected cores that are there: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn threads_are_where_they_were_asked_to_be() {
        let mut server = Config::defaults().unwrap().server;
        for (threads, flavor) in [
            (1, tokio::runtime::RuntimeFlavor::CurrentThread),
            (2, tokio::runtime::RuntimeFlavor::MultiThread),
        ] {
            server.threads = threads;
            assert_eq!(runtime(&server).unwrap().handle().runtime_flavor(), flavor);
        }
        let here = sched_getaffinity(None).unwrap();
        let core = (0..MOST_CORES).find(|core| here.is_set(*core)).unwrap();
        server.cores = vec![core];
        let tied = runtime(&server).unwrap();
        let of = tied.block_on(async { tokio::spawn(async { sched_getaffinity(None) }).await });
        let of = of.unwrap().unwrap();
        assert_eq!((of.count(), of.is_set(core)), (1, true));
        server.cores = vec![MOST_CORES - 1];
        assert!(runtime(&server).unwrap_err().to_string().contains("`server.cores`"));
    }
}
