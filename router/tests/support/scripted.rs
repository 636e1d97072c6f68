//! Engines that answer with whatever bytes a test says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{get, router, until};

/// Something that passes for an engine when it is looked at, and answers completions with whatever bytes a test says,
/// closing the connection afterwards.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    pub(crate) asked: Arc<AtomicUsize>,
    /// Chats it was asked for, as they came.
    pub(crate) bodies: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl Scripted {
    pub(crate) async fn start(answer: &'static str) -> Self {
        Self::with_metrics(answer, "vllm:num_requests_running 0\n").await
    }

    pub(crate) async fn with_metrics(answer: &'static str, metrics: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let bodies: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let (counted, kept) = (asked.clone(), bodies.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (counted, kept) = (counted.clone(), kept.clone());
                tokio::spawn(async move {
                    let request = read_request(&mut stream).await;
                    let whole = |body: &str| {
                        format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                            body.len()
                        )
                    };
                    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                    let reply = match path.as_str() {
                        "/health" => whole(""),
                        "/v1/models" => whole(r#"{"data":[{"id":"kvlane-small","root":"kvlane-small"}]}"#),
                        "/metrics" => whole(metrics),
                        "/v1/chat/completions" | "/v1/completions" => {
                            counted.fetch_add(1, Ordering::SeqCst);
                            kept.lock().push(request);
                            answer.to_owned()
                        }
                        _ => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                            .to_owned(),
                    };
                    let _ = stream.write_all(reply.as_bytes()).await;
                });
            }
        });
        Self { address, asked, bodies }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Head and body, by its length.
async fn read_request(stream: &mut TcpStream) -> String {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return text,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

/// A router for what is there, waited for until it is ready.
pub(crate) async fn ready_router(urls: &[String], flags: &[&str]) -> kvlane_router::app::App {
    let app = router(urls, flags).await;
    until("a ready router", || async {
        let health = get(app.address, "/health").await.json();
        health["ready"] == true && health["workers"]["ready"] == urls.len()
    })
    .await;
    app
}
