//! Asks a server whether it is well: for containers, which have neither a shell nor curl.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::Uri;

use crate::config::Server;

const PATIENCE: Duration = Duration::from_secs(3);
/// Of an answer as much as its status line.
const MOST_BYTES: u64 = 4096;

/// Where a router with these settings says that it lives.
pub fn own_address(server: &Server) -> String {
    let host = match server.host {
        // All addresses are no address to connect to.
        IpAddr::V4(host) if host.is_unspecified() => "127.0.0.1".to_owned(),
        IpAddr::V6(host) if host.is_unspecified() => "[::1]".to_owned(),
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    };
    format!("http://{host}:{}/live", server.port)
}

/// Fails unless the address answers with a 2xx.
pub fn probe(address: &str) -> anyhow::Result<()> {
    let uri: Uri =
        address.parse().ok().filter(|uri: &Uri| uri.scheme_str() == Some("http")).with_context(|| {
            format!("address is {address:?}, expected one such as http://127.0.0.1:8000/live")
        })?;
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or(80);
    let found =
        (host.trim_matches(['[', ']']), port).to_socket_addrs().with_context(|| address.to_owned())?;
    let mut last = None;
    let stream = found.into_iter().find_map(|to| {
        TcpStream::connect_timeout(&to, PATIENCE).inspect_err(|error| last = Some(error.to_string())).ok()
    });
    let mut stream = stream.with_context(|| {
        format!("{address}: nobody listens: {}", last.as_deref().unwrap_or("the name has no address"))
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let question = format!("GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).with_context(|| address.to_owned())?;
    let mut answer = Vec::new();
    let read = stream.take(MOST_BYTES).read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split_whitespace().nth(1).and_then(|status| status.parse::<u16>().ok());
    let status = status.with_context(|| match read {
        Ok(_) => format!("{address}: the answer is no HTTP"),
        Err(error) => format!("{address}: no answer: {error}"),
    })?;
    ensure!((200..300).contains(&status), "{address}: status {status}, expected 200 to 299");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn who_answers_is_well_and_who_does_not_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/live", listener.local_addr().unwrap());
        let answers = std::thread::spawn(move || {
            for status in ["200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    let mut part = [0; 512];
                    let read = stream.read(&mut part).unwrap();
                    asked.extend_from_slice(&part[..read]);
                }
                assert!(asked.starts_with(b"GET /live HTTP/1.1\r\n"));
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        });
        probe(&address).unwrap();
        assert!(probe(&address).unwrap_err().to_string().contains("status 503, expected 200 to 299"));
        answers.join().unwrap();
        assert!(probe(&address).unwrap_err().to_string().contains("nobody listens"));
        assert!(probe("localhost:1").unwrap_err().to_string().contains("expected one such as"));
    }
}
