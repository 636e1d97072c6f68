//! The admin listener's token, and requests that browsers send for other sites' pages.

use crate::support::{Bed, ask, get, question, until};

#[tokio::test]
async fn the_admin_listener_asks_for_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "first-token\n").unwrap();
    let setting = format!("admin.token_file={}", file.display());
    let bed = Bed::new(1, &["--set", &setting, "--set", "workers.refresh_ms=20"]).await;
    let with = async |token: &str, method: &str, path: &str| {
        let bearer = format!("Bearer {token}");
        ask(bed.admin(), method, path, &[("authorization", &bearer)], "").await.status.as_u16()
    };
    for (method, path) in [
        ("GET", "/admin/workers"),
        ("GET", "/admin/config"),
        ("GET", "/admin/keys"),
        ("POST", "/admin/mode"),
        ("POST", "/admin/explain"),
        ("GET", "/admin/explain/x"),
        ("POST", "/admin/drain/x"),
        ("GET", "/admin/nothing"),
        ("GET", "/admin//workers"),
        ("GET", "/"),
    ] {
        let refused = ask(bed.admin(), method, path, &[], "{}").await;
        assert_eq!(refused.status, 401, "{path}: {}", refused.body);
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
        assert_eq!(with("another", method, path).await, 401, "{path}");
        assert_ne!(with("first-token", method, path).await, 401, "{path}");
    }
    for open in ["/live", "/ready", "/health", "/metrics"] {
        assert_eq!(get(bed.admin(), open).await.status, 200, "{open}");
    }
    // By its digest, too, and read again; what cannot be used changes nothing.
    let digest = kvlane_router::access::Digest::of(b"second-token").hex();
    std::fs::write(&file, format!("sha256:{digest}\n")).unwrap();
    until("the second token", || async { with("second-token", "GET", "/admin/mode").await == 200 }).await;
    assert_eq!(with("first-token", "GET", "/admin/mode").await, 401);
    std::fs::write(&file, "").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    assert_eq!(with("second-token", "GET", "/admin/mode").await, 200);
    // The API has nothing to do with it.
    assert_eq!(bed.chat(&question("no token")).await.status, 200);
}

#[tokio::test]
async fn the_admin_listener_answers_no_other_sites_pages() {
    let bed = Bed::new(1, &[]).await;
    let own = bed.admin().to_string();
    let own_origin = format!("http://{own}");
    for (headers, status) in [
        (vec![("host", own.as_str())], 200),
        (vec![("host", own.as_str()), ("origin", own_origin.as_str())], 200),
        (vec![("host", "localhost:8090"), ("origin", "http://localhost:8090")], 200),
        (vec![("host", own.as_str()), ("origin", "https://evil.example")], 403),
        (vec![("host", own.as_str()), ("origin", "null")], 403),
        (vec![("host", own.as_str()), ("sec-fetch-site", "cross-site")], 403),
        (vec![("host", own.as_str()), ("sec-fetch-site", "same-site")], 403),
        (vec![("host", own.as_str()), ("sec-fetch-site", "none")], 200),
        // A name that was made to lead here.
        (vec![("host", "evil.example:8090"), ("origin", "http://evil.example:8090")], 403),
        (vec![("host", "evil.example")], 403),
    ] {
        for (method, path, body) in [("GET", "/admin/mode", ""), ("POST", "/admin/mode", "{}")] {
            let answered = ask(bed.admin(), method, path, &headers, body).await;
            assert_eq!(answered.status, status, "{headers:?}: {}", answered.body);
        }
    }
}

#[tokio::test]
async fn the_api_takes_no_posts_of_other_sites_pages() {
    let bed = Bed::new(1, &["--set", "server.cors_origins=https://chat.example"]).await;
    let (body, own) = (question("pages").to_string(), format!("http://{}", bed.address()));
    for (headers, status) in [
        (vec![("content-type", "text/plain")], 200),
        (vec![("content-type", "text/plain"), ("origin", own.as_str())], 200),
        (vec![("content-type", "text/plain"), ("origin", "https://chat.example")], 200),
        (vec![("content-type", "text/plain"), ("origin", "https://evil.example")], 403),
        (vec![("content-type", "application/json"), ("origin", "null")], 403),
        (vec![("authorization", "Bearer none"), ("origin", "https://evil.example")], 403),
    ] {
        let answered = ask(bed.address(), "POST", "/v1/chat/completions", &headers, &body).await;
        assert_eq!(answered.status, status, "{headers:?}: {}", answered.body);
        if status == 403 {
            assert_eq!(answered.json()["error"]["type"], "permission_error");
            assert!(answered.body.contains("server.cors_origins"), "{}", answered.body);
        }
    }
    // A name that was made to lead to this machine, and one that the operator has listed behind a proxy of its own.
    for (origin, status) in [("http://evil.example:8000", 403), ("https://chat.example", 200)] {
        let host = origin.split_once("://").unwrap().1;
        let headers = [("host", host), ("origin", origin)];
        let answered = ask(bed.address(), "POST", "/v1/chat/completions", &headers, &body).await;
        assert_eq!(answered.status, status, "{origin}: {}", answered.body);
    }
    // What changes nothing and cannot be read by the page is nobody's business.
    let origin = [("origin", "https://evil.example")];
    assert_eq!(ask(bed.address(), "GET", "/v1/models", &origin, "").await.status, 200);
}
