//! A corpus in an object store that anyone may read: listed as S3 lists (version 2), fetched one by one.

use std::time::Duration;

use anyhow::{Context, ensure};

use super::{Corpus, Document};
use crate::http::Http;

/// No more are taken, nor larger ones.
const MOST_DOCUMENTS: usize = 1000;
const MOST_BYTES: usize = 4 << 20;
const MOST_PAGES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn fetch(place: &str) -> anyhow::Result<Corpus> {
    let http = Http::new(PATIENCE)?;
    let (scheme, rest) = place.split_once("://").context("a URL")?;
    let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let base = format!("{scheme}://{host}/");
    let mut documents = Vec::new();
    let mut page = String::new();
    for _ in 0..MOST_PAGES {
        let url = format!("{base}?list-type=2&prefix={}{page}", encoded(prefix));
        let listed = http.get(&url, MOST_BYTES).await.with_context(|| format!("corpus {place}"))?;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        ensure!(
            listed.contains("<ListBucketResult"),
            "corpus {place}: {url} is no listing, expected ListBucketResult as S3 gives it"
        );
        for key in elements(&listed, "Key").filter(|key| key.ends_with(".txt") || key.ends_with(".md")) {
            ensure!(documents.len() < MOST_DOCUMENTS, "corpus {place}: more than {MOST_DOCUMENTS} texts");
            let url = format!("{base}{}", encoded(&key));
            let text = http.get(&url, MOST_BYTES).await.with_context(|| format!("corpus {place}"))?;
            let name = key.rsplit('/').next().unwrap_or(&key);
            let topic = name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned();
            documents.push(Document { topic, text: String::from_utf8_lossy(&text).into_owned() });
        }
        match elements(&listed, "NextContinuationToken").next() {
            Some(next) => page = format!("&continuation-token={}", encoded(&next)),
            None => {
                page.clear();
                break;
            }
        }
    }
    ensure!(page.is_empty(), "corpus {place}: its listing has more than {MOST_PAGES} pages");
    ensure!(!documents.is_empty(), "corpus {place}: no .txt or .md object, expected one or more");
    Ok(Corpus { documents })
}

/// What stands in the elements of a name.
fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let texts: Vec<String> = xml
        .split(&open)
        .skip(1)
        .filter_map(|part| part.split(&close).next())
        .map(|text| {
            text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
        })
        .collect();
    texts.into_iter()
}

/// For a path or a query; slashes stay.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_read_and_keys_encoded() {
        let xml = "<ListBucketResult><Contents><Key>a&amp;b.md</Key></Contents><Key>c d.txt</Key></ListBucketResult>";
        assert_eq!(elements(xml, "Key").collect::<Vec<_>>(), ["a&b.md", "c d.txt"]);
        assert_eq!(encoded("docs/c d&.txt"), "docs/c%20d%26.txt");
    }
}
