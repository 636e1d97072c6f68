//! Ports for servers that cannot choose one themselves.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below those that the system gives to connections, one of which could take it before it is used.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 21_000 + (std::process::id() % 512) as u16 * 16;
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed) % 2048);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}
