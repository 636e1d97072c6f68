//! Workers as a Kubernetes service's EndpointSlices name them.
//!
//! The watch lists everything anew whenever it is (re)connected, so an endpoint that went away unseen goes away here
//! too. Endpoints that are terminating but still serve are drained; those not ready yet are probed like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::super::keeper::{Found, Keeper};
use crate::config::{WorkerScheme, WorkerSpec};

/// `namespace/name` or `namespace/name:port`, the port by number or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRef {
    pub namespace: String,
    pub name: String,
    pub port: Option<String>,
}

impl ServiceRef {
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("NAMESPACE/NAME or NAMESPACE/NAME:PORT instead of {text:?}");
        let (namespace, rest) = text.split_once('/').ok_or_else(wrong)?;
        let (name, port) = rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)));
        let word = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
        };
        if [Some(namespace), Some(name), port].into_iter().flatten().all(word) {
            let port = port.map(str::to_owned);
            Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), port })
        } else {
            Err(wrong())
        }
    }
}

const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Follows the service until stopped.
pub async fn follow_service(
    keeper: Arc<Keeper>,
    client: Client,
    service: ServiceRef,
    scheme: WorkerScheme,
    stop: CancellationToken,
) {
    let slices: Api<EndpointSlice> = Api::namespaced(client, &service.namespace);
    let selector = watcher::Config::default().labels(&format!("kubernetes.io/service-name={}", service.name));
    let mut events = std::pin::pin!(kube::runtime::watcher(slices, selector));
    // Slices by name. A list is gathered aside, and replaces them when it is whole.
    let mut known: BTreeMap<String, EndpointSlice> = BTreeMap::new();
    let mut listing: Option<BTreeMap<String, EndpointSlice>> = None;
    let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap_or_default();
    while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
        match event {
            Ok(Event::Init) => listing = Some(BTreeMap::new()),
            Ok(Event::InitApply(slice)) => {
                listing.get_or_insert_default().insert(name(&slice), slice);
            }
            Ok(Event::InitDone) => known = listing.take().unwrap_or_default(),
            Ok(Event::Apply(slice)) => {
                known.insert(name(&slice), slice);
            }
            Ok(Event::Delete(slice)) => {
                known.remove(&name(&slice));
            }
            Err(error) => {
                // The watcher comes back by itself, and lists everything then.
                tracing::warn!(service = service.name, %error, "watching endpoints failed, trying again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        if listing.is_none() {
            // A pod with addresses of both kinds is in a slice of each, and one worker.
            let four = known.values().any(|slice| slice.address_type == "IPv4");
            let used = known.values().filter(|slice| !four || slice.address_type == "IPv4");
            keeper.update("kubernetes", used.flat_map(|slice| endpoints(slice, &service, scheme)).collect());
        }
    }
}

/// A slice's endpoints on the port that is meant: the named one, or the first.
fn endpoints(slice: &EndpointSlice, service: &ServiceRef, scheme: WorkerScheme) -> Vec<Found> {
    let mut ports = slice.ports.iter().flatten();
    let number = service.port.as_ref().and_then(|port| port.parse::<i32>().ok());
    let port = match (&service.port, number) {
        (None, _) => ports.find_map(|port| port.port),
        (Some(_), Some(number)) => Some(number),
        (Some(name), None) => ports.find(|port| port.name.as_ref() == Some(name)).and_then(|port| port.port),
    };
    let Some(port) = port else { return Vec::new() };
    let mut found = Vec::new();
    for endpoint in &slice.endpoints {
        let conditions = endpoint.conditions.as_ref();
        let terminating = conditions.and_then(|conditions| conditions.terminating).unwrap_or(false);
        let serving = conditions.and_then(|conditions| conditions.serving).unwrap_or(true);
        if terminating && !serving {
            continue;
        }
        // Only the first address of an endpoint is to be used.
        let Some(address) = endpoint.addresses.first() else { continue };
        let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
        let name = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
        // Certificates are for the service; its pods' addresses come and go.
        let server_name =
            (scheme == WorkerScheme::Https).then(|| format!("{}.{}.svc", service.name, service.namespace));
        let spec = WorkerSpec { name, server_name, ..WorkerSpec::at(format!("{scheme}://{host}:{port}")) };
        found.push(Found { draining: terminating, ..spec.into() });
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_is_named_with_its_namespace() {
        let service = ServiceRef::parse("llm/vllm:http").unwrap();
        assert_eq!((service.namespace.as_str(), service.port.as_deref()), ("llm", Some("http")));
        assert_eq!(ServiceRef::parse("llm/vllm").unwrap().port, None);
        for wrong in ["vllm", "llm/", "/vllm", "llm/v:", "llm/a b", "a/b/c"] {
            assert!(ServiceRef::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn endpoints_are_workers_and_those_that_leave_are_drained() {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "vllm-1"},
            "ports": [{"name": "metrics", "port": 9}, {"name": "http", "port": 8000}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "vllm-0"}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": false, "terminating": true}},
                {"addresses": ["fd00::4"], "conditions": {"ready": false}},
            ],
        }))
        .unwrap();
        let found = endpoints(&slice, &ServiceRef::parse("llm/vllm:http").unwrap(), WorkerScheme::Http);
        let seen: Vec<_> = found.iter().map(|found| (found.spec.url.as_str(), found.draining)).collect();
        assert_eq!(
            seen,
            [
                ("http://10.0.0.1:8000", false),
                ("http://10.0.0.2:8000", true),
                ("http://[fd00::4]:8000", false)
            ]
        );
        assert_eq!(found[0].spec.name.as_deref(), Some("vllm-0"));
        assert!(
            endpoints(&slice, &ServiceRef::parse("llm/vllm:grpc").unwrap(), WorkerScheme::Http).is_empty()
        );
    }
}
