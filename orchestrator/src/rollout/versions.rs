//! The policy versions of a rollout: the version that the servers have, and the newest version that they can have.
//!
//! A server reports the weights of its tokens by a label that ends in a version. Servers keep their labels when a run
//! ends. A new run on such servers would believe that its tokens are as new as the label says, until the first update.
//! So where the run itself updates the servers, a label newer than every announcement of the run is not believed, and
//! is reported.
//!
//! Where the run loads the weights and sets the labels itself, a server that has permits has had its label set. If its answer
//! has another label nevertheless, its process was replaced, and its weights are not those of the run. Such an answer is
//! not accepted.

use std::sync::atomic::{AtomicU64, Ordering};

use rolldock_dispatch::{Stamp, VersionSpan};

/// The versions that all parts of a rollout share.
#[derive(Debug)]
pub(crate) struct Versions {
    served: AtomicU64,
    /// The newest version of the run that a server can have, or [`u64::MAX`] if every label is believed.
    newest: AtomicU64,
    /// The last reported label that is newer than `newest`.
    reported: AtomicU64,
    /// Every server with permits has had its label set by this run for this version and all later ones. [`u64::MAX`] if
    /// the run sets no labels.
    labelled_from: AtomicU64,
}

impl Versions {
    /// The servers have `served`, and every label is believed.
    pub(crate) fn new(served: u64) -> Self {
        let unknown = || AtomicU64::new(u64::MAX);
        Self { served: served.into(), newest: unknown(), reported: unknown(), labelled_from: unknown() }
    }

    /// The version that the servers have now, as the client sees it.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Notes that the servers have `version` now.
    pub(crate) fn serve(&self, version: u64) {
        self.expect(version);
        self.served.store(version, Ordering::Relaxed);
    }

    /// Notes that servers may report `version` from now on.
    pub(crate) fn expect(&self, version: u64) {
        self.newest.fetch_max(version, Ordering::Relaxed);
    }

    /// From now on, believes no label that is newer than `announced` and the versions that are expected later.
    pub(crate) fn believe_only_announced(&self, announced: u64) {
        self.newest.store(announced, Ordering::Relaxed);
    }

    /// Notes that the run gives every version after `announced` and its label to the servers before their permits.
    pub(crate) fn sets_labels_after(&self, announced: u64) {
        self.labelled_from.store(announced.saturating_add(1), Ordering::Relaxed);
    }

    /// The label of weights that cannot be those of the run, in an answer to a request that was sent at version `sent`.
    pub(crate) fn foreign<'a>(&self, sent: u64, spans: &'a [VersionSpan]) -> Option<&'a str> {
        if sent < self.labelled_from.load(Ordering::Relaxed) {
            return None;
        }
        let newest = self.newest.load(Ordering::Relaxed);
        let is_foreign = |span: &&VersionSpan| span.number().is_none_or(|version| version > newest);
        spans.iter().find(is_foreign).map(|span| &*span.version)
    }

    /// The stamp of an answer that arrives now. Its request was sent at version `sent`.
    pub(crate) fn stamp(&self, sent: u64) -> Stamp {
        Stamp { sent, now: self.served().max(sent), newest: self.newest.load(Ordering::Relaxed) }
    }

    /// Warns once of a label that is not believed.
    pub(crate) fn check(&self, server: &str, spans: &[VersionSpan]) {
        let newest = self.newest.load(Ordering::Relaxed);
        let unknown = |span: &&VersionSpan| span.number().is_some_and(|version| version > newest);
        let Some(span) = spans.iter().find(unknown) else { return };
        let version = span.number().unwrap_or_default();
        if self.reported.swap(version, Ordering::Relaxed) == version {
            return;
        }
        tracing::warn!(
            server,
            label = &*span.version,
            newest,
            "the label of the server's weights is newer than every version that was announced to this run, so \
             the weights may be those of another run; their tokens count as tokens of the run's own version; \
             restart the server, or announce the weights that it should have"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(versions: &Versions, label: &str) -> (u64, u64) {
        use rolldock_dispatch::{CarriedSample, PartialOutput};
        let span = VersionSpan { version: label.into(), start: 0, end: 1 };
        let part = PartialOutput {
            response_ids: vec![7],
            logprobs: vec![-0.5],
            version_spans: vec![span],
            finish_reason: None,
        };
        let mut sample = CarriedSample::new(0, 0);
        assert!(sample.extend(part, versions.stamp(versions.served())));
        (sample.policy_version_min, sample.policy_version_max)
    }

    #[test]
    fn only_labels_of_announced_versions_are_believed() {
        let versions = Versions::new(1);
        assert_eq!(
            range(&versions, "step-4"),
            (4, 4),
            "without announcements the label is all that is known"
        );
        versions.believe_only_announced(1);
        assert_eq!(range(&versions, "step-4"), (1, 1), "an earlier run has left the label");
        assert_eq!(range(&versions, "step-0"), (0, 0), "a server that was not updated");
        versions.expect(2);
        assert_eq!(range(&versions, "step-2"), (2, 2), "the update is under way");
        versions.serve(4);
        assert_eq!(range(&versions, "step-4"), (4, 4));
        assert_eq!(range(&versions, "step-5"), (4, 4));
    }

    #[test]
    fn a_server_whose_label_the_run_has_set_has_no_other_label() {
        let versions = Versions::new(0);
        let spans = |label: &str| [VersionSpan { version: label.into(), start: 0, end: 1 }];
        assert_eq!(versions.foreign(3, &spans("default")), None, "this run sets no labels");
        versions.believe_only_announced(0);
        versions.sets_labels_after(0);
        versions.serve(2);
        assert_eq!(versions.foreign(0, &spans("default")), None, "it began before the first update");
        assert_eq!(versions.foreign(1, &spans("default")), Some("default"));
        assert_eq!(versions.foreign(1, &spans("step-3")), Some("step-3"));
        for (sent, label) in [(1, "step-1"), (1, "step-2"), (2, "step-1")] {
            assert_eq!(versions.foreign(sent, &spans(label)), None, "{label}");
        }
        assert_eq!(versions.foreign(2, &[]), None, "a server that reports none");
    }
}
