//! The principal that requests a change, as recorded in the history.

/// A principal's name and the trigger depth of its request: the number of triggers in the chain that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub name: String,
    pub depth: i32,
}

impl Caller {
    /// A caller at depth 0: no trigger led to its request.
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
