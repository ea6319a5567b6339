//! Image references, and which image may replace another.

use std::fmt;
use std::sync::Arc;

use crate::limits::IMAGE_REF_BYTES;
use crate::runtimes::OperationCode;

/// `repository[:tag][@digest]`, as entered.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ImageRef(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be an image reference like ghcr.io/team/model:1.2.3")]
pub struct ImageRefError;

impl ImageRef {
    pub fn new(text: &str) -> Result<Self, ImageRefError> {
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:/@".contains(&b));
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let ends = text.bytes().last().is_some_and(|b| b.is_ascii_alphanumeric());
        let parts = !text.contains("//") && text.matches('@').count() <= 1;
        if plain && begins && ends && parts && text.len() <= IMAGE_REF_BYTES {
            Ok(Self(text.into()))
        } else {
            Err(ImageRefError)
        }
    }

    /// A reference that was validated when it was stored.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The repository, and the tag unless there is a digest.
    fn split(&self) -> (&str, Option<&str>) {
        if self.0.contains('@') {
            return (&self.0, None);
        }
        let slash = self.0.rfind('/').map_or(0, |at| at + 1);
        match self.0[slash..].find(':') {
            Some(colon) => (&self.0[..slash + colon], Some(&self.0[slash + colon + 1..])),
            None => (&self.0, None),
        }
    }

    /// The tag as `major.minor.patch`, with an optional `v` prefix.
    fn version(&self) -> Option<(u64, u64, u64)> {
        let tag = self.split().1?;
        let tag = tag.strip_prefix('v').unwrap_or(tag);
        // The part after a hyphen is a pre-release or a build of the same version: `1.2.3-alpine`.
        let numbers = tag.split('-').next()?;
        let mut parts = numbers.split('.').map(|part| {
            let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            let leading_zero = part.len() > 1 && part.starts_with('0');
            if plain && !leading_zero { part.parse::<u64>().ok() } else { None }
        });
        let version = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// Checks that this image may be patched to the other: same repository, same major and minor version.
    pub fn check_patch(&self, to: &Self) -> Result<(), OperationCode> {
        let (Some(from_version), Some(to_version)) = (self.version(), to.version()) else {
            return Err(OperationCode::ImageRefNotSemver);
        };
        let same = self.split().0 == to.split().0 && (from_version.0, from_version.1) == (to_version.0, to_version.1);
        if same { Ok(()) } else { Err(OperationCode::SemverPatchOnly) }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(from: &str, to: &str) -> Result<(), OperationCode> {
        ImageRef::stored(from).check_patch(&ImageRef::stored(to))
    }

    /// Requirement R3.
    #[test]
    fn a_patch_keeps_the_major_and_minor_version() {
        assert_eq!(patch("a/b:1.2.3", "a/b:1.2.9"), Ok(()));
        assert_eq!(patch("localhost:5000/b:v1.2.3", "localhost:5000/b:1.2.4-alpine"), Ok(()));
        for to in ["a/b:1.3.3", "a/b:2.2.3", "a/c:1.2.4", "b:1.2.4"] {
            assert_eq!(patch("a/b:1.2.3", to), Err(OperationCode::SemverPatchOnly), "{to}");
        }
        for to in ["a/b", "a/b:latest", "a/b:1.2", "a/b:1.2.3.4", "a/b:1.02.3", "a/b@sha256:00", "localhost:5000/b"] {
            assert_eq!(patch("a/b:1.2.3", to), Err(OperationCode::ImageRefNotSemver), "{to}");
        }
    }

    /// Requirement R1.
    #[test]
    fn an_image_reference_has_a_plain_format() {
        for good in ["busybox", "a/b:1", "localhost:5000/x@sha256:0f"] {
            assert!(ImageRef::new(good).is_ok(), "{good}");
        }
        for bad in ["", " busybox", "a//b", "-x", "a:", "a b", "ü", "a@b@c"] {
            assert!(ImageRef::new(bad).is_err(), "{bad}");
        }
    }
}
