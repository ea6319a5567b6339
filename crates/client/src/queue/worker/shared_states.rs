//! Values that all handlers of a worker share, by type.

use std::any::{Any, TypeId};
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct SharedStates(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl SharedStates {
    /// Adds a value. It replaces one of the same type.
    pub(super) fn insert<S: Send + Sync + 'static>(&mut self, state: S) {
        self.0.insert(TypeId::of::<S>(), Box::new(state));
    }

    pub(super) fn get<S: 'static>(&self) -> Option<&S> {
        self.0.get(&TypeId::of::<S>())?.downcast_ref()
    }
}
