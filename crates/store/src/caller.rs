//! Who asks for a change that history tells of, and how it came to that.

/// A principal by name, with how many triggers led to what it asks (T5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub depth: i32,
}

impl Caller {
    /// One whom no trigger led here.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), depth: 0 }
    }

    pub fn at_depth(self, depth: i32) -> Self {
        Self { depth, ..self }
    }
}

impl From<&str> for Caller {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}
