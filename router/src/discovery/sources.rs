//! Who says which workers there are: the configuration, a file, DNS, NATS, Kubernetes.

mod kubernetes;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvlane_engine_adapters::engine_facts::Engine;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

pub use self::kubernetes::{ServiceRef, follow_service};
use super::keeper::{Found, Keeper};
use crate::config::{EventSpec, WorkerScheme, WorkerSpec, checked_url};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkersFile {
    workers: Vec<String>,
}

/// The workers a file lists.
pub fn read_file(path: &Path) -> Result<Vec<WorkerSpec>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    parse_file(&text).map_err(|error| format!("{shown}: {error}"))
}

fn parse_file(text: &str) -> Result<Vec<WorkerSpec>, String> {
    let file: WorkersFile = toml::from_str(text).map_err(|error| error.to_string())?;
    let parsed = file.workers.iter().map(|text| WorkerSpec::parse(text));
    parsed.collect::<Result<_, _>>().map_err(|expected| format!("a worker is wrong, expected {expected}"))
}

#[cfg(fuzzing)]
pub fn parse_workers(text: &str) -> Result<Vec<WorkerSpec>, String> {
    parse_file(text)
}

/// Follows the file. One that cannot be read changes nothing.
pub async fn follow_file(keeper: Arc<Keeper>, path: PathBuf, every: Duration, stop: CancellationToken) {
    let mut last_error = None;
    loop {
        let read_path = path.clone();
        let read = tokio::task::spawn_blocking(move || read_file(&read_path)).await;
        match read {
            Ok(Ok(workers)) => {
                last_error = None;
                keeper.update("file", workers.into_iter().map(Found::from).collect());
            }
            Ok(Err(error)) if last_error.as_ref() != Some(&error) => {
                tracing::error!(error, "the workers' file cannot be used; nothing is changed");
                last_error = Some(error);
            }
            _ => {}
        }
        if stop.run_until_cancelled(tokio::time::sleep(every)).await.is_none() {
            return;
        }
    }
}

/// Every address of every name is a worker. A name that cannot be resolved changes nothing.
pub async fn follow_dns(
    keeper: Arc<Keeper>,
    names: Vec<String>,
    scheme: WorkerScheme,
    every: Duration,
    stop: CancellationToken,
) {
    let mut known: Vec<Vec<Found>> = vec![Vec::new(); names.len()];
    loop {
        for (name, known) in names.iter().zip(&mut known) {
            match tokio::net::lookup_host(name.as_str()).await {
                Ok(addresses) => {
                    let mut addresses: Vec<SocketAddr> = addresses.collect();
                    // One engine with addresses of both kinds is one worker.
                    if addresses.iter().any(SocketAddr::is_ipv4) {
                        addresses.retain(SocketAddr::is_ipv4);
                    }
                    let mut urls: Vec<String> =
                        addresses.iter().map(|address| format!("{scheme}://{address}")).collect();
                    urls.sort();
                    urls.dedup();
                    // Certificates are for names; addresses come and go.
                    let host = name.rsplit_once(':').map(|(host, _)| host.to_owned());
                    let server_name = host.filter(|_| scheme == WorkerScheme::Https);
                    let spec = |url| WorkerSpec { server_name: server_name.clone(), ..WorkerSpec::at(url) };
                    *known = urls.into_iter().map(|url| spec(url).into()).collect();
                }
                Err(error) => tracing::debug!(name, %error, "cannot be resolved"),
            }
        }
        keeper.update("dns", known.concat());
        if stop.run_until_cancelled(tokio::time::sleep(every)).await.is_none() {
            return;
        }
    }
}

/// Between two looks at who is announced on NATS.
const ANNOUNCEMENTS: Duration = Duration::from_millis(200);

/// Workers as their bridges announce them.
pub async fn follow_announcements(keeper: Arc<Keeper>, stop: CancellationToken) {
    let Some(view) = keeper.nats().cloned() else { return };
    while stop.run_until_cancelled(tokio::time::sleep(ANNOUNCEMENTS)).await.is_some() {
        let mut found: Vec<Found> = Vec::new();
        for announcement in view.announced() {
            // Several ranks are one worker.
            if found.iter().any(|known| known.instance == Some(announcement.worker_id)) {
                continue;
            }
            let Ok(url) = checked_url(&announcement.url) else { continue };
            let spec = WorkerSpec {
                events: EventSpec::Nats,
                slots: announcement.slots,
                engine: Engine::parse(&announcement.engine),
                ..WorkerSpec::at(url)
            };
            let block_size = Some(announcement.block_size).filter(|size| *size > 0);
            found.push(Found { spec, instance: Some(announcement.worker_id), draining: false, block_size });
        }
        keeper.update("nats", found);
    }
}
