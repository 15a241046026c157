//! Keeps log messages for the tests.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    /// The log messages of this thread, which runs one test.
    pub(crate) static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A subscriber that keeps log messages by thread. It is installed once for the whole process, before the
/// first message, because `tracing` caches for each call site whether any subscriber is interested.
pub(crate) struct Log;

impl Log {
    /// Begins to keep messages.
    pub(crate) fn keep() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Self).unwrap());
    }
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            SAID.with_borrow_mut(|said| said.push(format!("{value:?}")));
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
