//! What goes out: the guard that keeps it where it may go, and deliveries to receivers that misbehave (Q10).

mod deliver;
mod guard;
mod nodes;
