//! Static files of the dashboard, embedded in the binary. Their URL contains a digest of their content, so that
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
    asset("app.css", "text/css; charset=utf-8", include_bytes!("../static/app.css")),
    asset("app.js", "text/javascript; charset=utf-8", include_bytes!("../static/app.js")),
    asset("act.js", "text/javascript; charset=utf-8", include_bytes!("../static/act.js")),
    asset("bulk.js", "text/javascript; charset=utf-8", include_bytes!("../static/bulk.js")),
    asset("call.js", "text/javascript; charset=utf-8", include_bytes!("../static/call.js")),
    asset("decorate.js", "text/javascript; charset=utf-8", include_bytes!("../static/decorate.js")),
    asset("docs.css", "text/css; charset=utf-8", include_bytes!("../static/docs.css")),
    asset("follow.js", "text/javascript; charset=utf-8", include_bytes!("../static/follow.js")),
    asset("json.js", "text/javascript; charset=utf-8", include_bytes!("../static/json.js")),
    asset("keys.js", "text/javascript; charset=utf-8", include_bytes!("../static/keys.js")),
    asset("live.js", "text/javascript; charset=utf-8", include_bytes!("../static/live.js")),
    asset("many.js", "text/javascript; charset=utf-8", include_bytes!("../static/many.js")),
    asset("make.js", "text/javascript; charset=utf-8", include_bytes!("../static/make.js")),
    asset("replay.js", "text/javascript; charset=utf-8", include_bytes!("../static/replay.js")),
    asset("theme.js", "text/javascript; charset=utf-8", include_bytes!("../static/theme.js")),
    asset("icon.svg", "image/svg+xml", include_bytes!("../static/icon.svg")),
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
