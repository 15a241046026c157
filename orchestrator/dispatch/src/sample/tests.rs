use super::*;

fn number(label: &str) -> Option<u64> {
    VersionSpan { version: label.into(), start: 0, end: 1 }.number()
}

#[test]
fn labels_end_in_their_number() {
    assert_eq!(number("42"), Some(42));
    assert_eq!(number("step-7"), Some(7));
    assert_eq!(number("default"), None);
    assert_eq!(number(""), None);
    assert_eq!(number("99999999999999999999999"), None);
}

fn part(tokens: u32, version: Option<&str>) -> PartialOutput {
    let span = |version: &str| VersionSpan { version: version.into(), start: 0, end: tokens };
    PartialOutput {
        response_ids: (0..tokens).collect(),
        logprobs: vec![-0.5; tokens as usize],
        version_spans: version.map(span).into_iter().collect(),
        finish_reason: None,
    }
}

#[test]
fn segments_line_up_with_their_versions() {
    let mut sample = CarriedSample::new(3, 0);
    assert!(sample.extend(part(4, Some("step-2")), Stamp { sent: 2, now: 2, newest: u64::MAX }));
    assert!(sample.extend(part(2, Some("step-2")), Stamp { sent: 2, now: 2, newest: u64::MAX }));
    assert!(sample.extend(part(3, Some("step-5")), Stamp { sent: 5, now: 5, newest: u64::MAX }));
    let spans: Vec<(&str, u32, u32)> =
        sample.version_spans.iter().map(|span| (&*span.version, span.start, span.end)).collect();
    assert_eq!(spans, [("step-2", 0, 6), ("step-5", 6, 9)]);
    assert_eq!((sample.segments, sample.tokens(), sample.logprobs.len()), (3, 9, 9));
    assert_eq!((sample.policy_version_min, sample.policy_version_max), (2, 5));
    assert!(sample.versions_reported);
}

#[test]
fn versions_that_the_engine_does_not_report_are_stamped_by_the_client() {
    let mut sample = CarriedSample::new(0, 0);
    assert!(sample.extend(part(4, None), Stamp { sent: 6, now: 7, newest: u64::MAX }));
    assert_eq!(sample.version_spans, [VersionSpan { version: "6".into(), start: 0, end: 4 }]);
    assert_eq!((sample.policy_version_min, sample.policy_version_max), (6, 7));
    assert!(!sample.versions_reported);
}

#[test]
fn tokens_that_cannot_be_lined_up_are_not_taken() {
    let mut sample = CarriedSample::new(0, 0);
    let bare = PartialOutput { logprobs: Vec::new(), ..part(4, None) };
    let stamp = Stamp { sent: 0, now: 0, newest: u64::MAX };
    assert!(
        !sample.extend(bare.clone(), stamp),
        "the sample continues, and its later tokens may have log-probabilities"
    );
    assert!(!sample.extend(part(0, None), stamp));
    assert!(sample.extend(PartialOutput { finish_reason: Some(FinishReason::Stop), ..bare }, stamp));
    assert_eq!((sample.tokens(), sample.segments), (4, 1));
}
