//! Static files of the dashboard, embedded in the binary without comments (see `build.rs`). Their URL contains a digest of their content, so that
//! browsers can cache them indefinitely.

use std::fmt::Write;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};

pub struct Asset {
    pub name: &'static str,
    pub content_type: &'static str,
    pub bytes: &'static [u8],
}

const fn asset(name: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Asset {
    Asset { name, content_type, bytes }
}

const ASSETS: &[Asset] = &[
    asset("app.css", "text/css; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/app.css"))),
    asset("app.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/app.js"))),
    asset("act.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/act.js"))),
    asset("bulk.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/bulk.js"))),
    asset("call.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/call.js"))),
    asset(
        "decorate.js",
        "text/javascript; charset=utf-8",
        include_bytes!(concat!(env!("OUT_DIR"), "/static/decorate.js")),
    ),
    asset("docs.css", "text/css; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/docs.css"))),
    asset("follow.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/follow.js"))),
    asset("json.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/json.js"))),
    asset("keys.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/keys.js"))),
    asset("live.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/live.js"))),
    asset("many.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/many.js"))),
    asset("make.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/make.js"))),
    asset("replay.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/replay.js"))),
    asset("theme.js", "text/javascript; charset=utf-8", include_bytes!(concat!(env!("OUT_DIR"), "/static/theme.js"))),
    asset("icon.svg", "image/svg+xml", include_bytes!(concat!(env!("OUT_DIR"), "/static/icon.svg"))),
];

/// The version in the URL of every file: a digest of all files.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut digest = Sha256::new();
    ASSETS.iter().for_each(|asset| digest.update(asset.bytes));
    digest.finalize().iter().take(6).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
});

pub fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(names: &[&str]) -> usize {
        names.iter().map(|name| find(name).expect("the file exists").bytes.len()).sum()
    }

    #[test]
    fn a_page_has_less_than_60_kb_of_scripts_and_styles() {
        let always = [
            "app.css",
            "theme.js",
            "app.js",
            "act.js",
            "call.js",
            "decorate.js",
            "json.js",
            "keys.js",
            "live.js",
            "make.js",
        ];
        let of_jobs = ["bulk.js", "many.js"];
        let of_logs = ["follow.js", "replay.js", "many.js"];
        for more in [&of_jobs[..], &of_logs[..]] {
            let bytes = size(&always) + size(more);
            assert!(bytes < 60_000, "{bytes} bytes with {more:?}");
        }
    }

    #[test]
    fn comments_of_scripts_and_styles_are_not_sent() {
        for asset in ASSETS {
            let text = std::str::from_utf8(asset.bytes).expect("text");
            assert!(!text.contains("\n//") && !text.contains("/*") && !text.starts_with("//"), "{}", asset.name);
        }
    }
}
