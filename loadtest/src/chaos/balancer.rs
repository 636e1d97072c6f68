//! A TCP balancer before routers: a connection goes to the ready router that has fewest, and to the next one when that
//! refuses. Bytes are copied both ways; nothing is understood of them.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::http::Http;

/// Between two looks at a router, and how long it may take to answer one.
const LOOK: Duration = Duration::from_millis(150);
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(1);
/// How long a connection waits for a router when none takes it, and between two tries.
const NOBODY: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections whose router is remembered, for each that may be open.
const REMEMBERED: usize = 8;

#[derive(Debug)]
struct Target {
    address: SocketAddr,
    ready: AtomicBool,
    connections: AtomicUsize,
}

/// Which router each client's connection went to, the oldest forgotten first.
#[derive(Debug, Default)]
struct Routes {
    by_client: HashMap<SocketAddr, usize>,
    order: VecDeque<SocketAddr>,
}

#[derive(Debug)]
struct Shared {
    targets: Vec<Target>,
    most: usize,
    routes: Mutex<Routes>,
}

/// See the [module](self). It ends, with all its connections, when this goes.
#[derive(Debug)]
pub struct Balancer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Balancer {
    /// `most` connections at a time; more wait to be accepted.
    pub async fn start(address: SocketAddr, routers: &[SocketAddr], most: usize) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("the balancer's {address}"))?;
        let address = listener.local_addr()?;
        let target = |address: &SocketAddr| Target {
            address: *address,
            ready: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        };
        let targets = routers.iter().map(target).collect();
        let shared = Arc::new(Shared { targets, most, routes: Mutex::default() });
        let http = Http::new(LOOK_PATIENCE)?;
        let looks = (0..routers.len()).map(|n| {
            let (shared, http) = (shared.clone(), http.clone());
            AbortOnDropHandle::new(tokio::spawn(async move { shared.look(n, &http).await }))
        });
        let mut tasks: Vec<_> = looks.collect();
        tasks.push(AbortOnDropHandle::new(tokio::spawn(accept(listener, shared.clone()))));
        Ok(Self { address, shared, _tasks: tasks })
    }

    /// The router that a client's connection went to.
    pub fn router_of(&self, client: SocketAddr) -> Option<usize> {
        self.shared.routes.lock().by_client.get(&client).copied()
    }

    /// Connections to a router now.
    pub fn connections(&self, router: usize) -> usize {
        self.shared.targets.get(router).map_or(0, |target| target.connections.load(Ordering::Relaxed))
    }
}

impl Shared {
    async fn look(&self, n: usize, http: &Http) {
        let target = &self.targets[n];
        let url = format!("http://{}/ready", target.address);
        loop {
            let ready = http.get(&url, 1 << 16).await.is_ok();
            target.ready.store(ready, Ordering::Relaxed);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Routers as they are tried: the ready before the others, those with few connections first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.targets.len()).collect();
        order.sort_by_key(|n| {
            let target = &self.targets[*n];
            (!target.ready.load(Ordering::Relaxed), target.connections.load(Ordering::Relaxed))
        });
        order
    }

    async fn connect(&self) -> Option<(usize, TcpStream)> {
        for n in self.order() {
            match tokio::time::timeout(CONNECT, TcpStream::connect(self.targets[n].address)).await {
                Ok(Ok(stream)) => return Some((n, stream)),
                _ => self.targets[n].ready.store(false, Ordering::Relaxed),
            }
        }
        None
    }

    async fn carry(&self, mut client: TcpStream, from: SocketAddr) {
        let connecting = async {
            loop {
                match self.connect().await {
                    Some(connected) => return connected,
                    None => tokio::time::sleep(AGAIN).await,
                }
            }
        };
        let Ok((n, mut router)) = tokio::time::timeout(NOBODY, connecting).await else { return };
        let _ = (client.set_nodelay(true), router.set_nodelay(true));
        self.remember(from, n);
        let counted = Counted::new(&self.targets[n].connections);
        let _ = tokio::io::copy_bidirectional(&mut client, &mut router).await;
        drop(counted);
    }

    fn remember(&self, client: SocketAddr, n: usize) {
        let mut routes = self.routes.lock();
        if routes.by_client.insert(client, n).is_none() {
            routes.order.push_back(client);
        }
        if routes.order.len() > self.most.saturating_mul(REMEMBERED)
            && let Some(oldest) = routes.order.pop_front()
        {
            routes.by_client.remove(&oldest);
        }
    }
}

struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(shared.most));
    // With this task gone, so are all of them.
    let mut carried = JoinSet::new();
    loop {
        while carried.try_join_next().is_some() {}
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, from)) => {
                let shared = shared.clone();
                carried.spawn(async move {
                    shared.carry(client, from).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}
