#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::json;

use super::*;

const TERMS: PolicyTerms = PolicyTerms { mode: PolicyMode::FullyAsync, max_staleness: 2 };

fn labelled(version: u64, label: &str) -> Announcement {
    Announcement { label: label.into(), ..Announcement::new(version) }
}

#[tokio::test]
async fn versions_rise_and_one_number_is_one_set_of_weights() {
    let state = PolicyState::new(TERMS, 3);
    let refused = |version| AnnounceError::NotNewer { version, announced: 3 };
    assert_eq!(state.announce(Announcement::new(3)), Err(refused(3)), "what the run began with");
    assert_eq!(state.announce(Announcement::new(2)), Err(refused(2)));

    let seventh = Announcement { payload: Some(json!({ "ranks": 8 })), ..labelled(7, "step-7") };
    assert_eq!(state.announce(seventh.clone()), Ok(Announced::Taken));
    assert_eq!(state.announce(seventh.clone()), Ok(Announced::Again));
    let other = Announcement { path: Some("/elsewhere".to_owned()), ..seventh };
    assert_eq!(state.announce(other), Err(AnnounceError::Differs { version: 7 }));
    let late = AnnounceError::NotNewer { version: 6, announced: 7 };
    assert_eq!(state.announce(Announcement::new(6)), Err(late));
    assert_eq!((state.announced(), state.served()), (7, 3));
}

#[tokio::test]
async fn a_resumed_run_knows_its_last_announcement() {
    let state = PolicyState::new(TERMS, 0);
    assert_eq!(state.latest(), None);
    state.announce(labelled(7, "step-7")).unwrap();
    let last = state.latest().unwrap();
    let resumed = PolicyState::resumed(TERMS, (*last).clone());
    assert_eq!((resumed.announced(), resumed.served(), resumed.pending()), (7, 7, None));
    assert_eq!(resumed.announce(labelled(7, "step-7")), Ok(Announced::Again));
    assert_eq!(resumed.pending(), None, "the servers have it");
    assert_eq!(resumed.announce(Announcement::new(7)), Err(AnnounceError::Differs { version: 7 }));
    assert_eq!(resumed.announce(Announcement::new(8)), Ok(Announced::Taken));
}

#[tokio::test]
async fn a_label_can_be_read_back() {
    let state = PolicyState::new(TERMS, 0);
    for (label, version) in [("step-8", 7), ("seven", 7), ("", 7)] {
        let bad = AnnounceError::BadLabel { label: label.to_owned(), version };
        assert_eq!(state.announce(labelled(version, label)), Err(bad));
    }
    assert_eq!(state.announce(labelled(7, "step-007")), Ok(Announced::Taken));
    assert_eq!(state.pending().unwrap().label.as_ref(), "step-007");
    assert_eq!(Announcement::new(9).label.as_ref(), "9");
    let large = Announcement::new(u64::MAX);
    assert_eq!(state.announce(large), Err(AnnounceError::TooLarge { version: u64::MAX }));
}

#[tokio::test]
async fn only_the_newest_is_pending_until_it_is_served() {
    let state = PolicyState::new(TERMS, 0);
    assert_eq!(state.pending(), None);
    for version in [1, 2, 5] {
        state.announce(Announcement::new(version)).unwrap();
    }
    assert_eq!(state.pending().unwrap().version, 5);
    state.begin_update(5);
    assert_eq!(state.versions().updating, Some(5));
    assert_eq!(state.announce_next(), 6);
    state.end_update(5);
    assert_eq!((state.served(), state.announced()), (5, 6));
    assert_eq!(state.pending().unwrap().version, 6);
    state.end_update(6);
    assert_eq!(state.pending(), None);
}

#[tokio::test]
async fn a_failure_is_reported_until_the_next_announcement() {
    let state = PolicyState::new(TERMS, 0);
    let first = Announcement::new(1);
    state.announce(first.clone()).unwrap();
    state.begin_update(1);
    state.fail_update(1, "no answer");
    assert_eq!(state.versions().failure.as_deref(), Some("no answer"));
    assert_eq!(state.announce(first), Ok(Announced::Again));
    assert_eq!(state.versions().failure, None, "an update to a repeated announcement is tried again");
    state.begin_update(1);
    state.announce(Announcement::new(2)).unwrap();
    state.fail_update(1, "no answer");
    assert_eq!(state.versions().failure, None, "it is not the newest any more");
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_retry_ends_with_an_announcement() {
    let state = PolicyState::new(TERMS, 0);
    for (number, announcement) in [(1, Announcement::new(1)), (1, Announcement::new(2))] {
        state.announce(Announcement::new(number)).unwrap();
        state.begin_update(1);
        state.fail_update(1, "no answer");
        let (retry, second) = (state.until_retry(1), Duration::from_secs(1));
        tokio::pin!(retry);
        assert!(tokio::time::timeout(second, &mut retry).await.is_err(), "nothing was announced");
        state.announce(announcement).unwrap();
        assert!(tokio::time::timeout(second, &mut retry).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_version_ends_with_that_version_or_a_later_one() {
    let state = PolicyState::new(TERMS, 0);
    let waiting = tokio::time::timeout(Duration::from_secs(60), state.until_served(2));
    let announced = tokio::time::timeout(Duration::from_secs(60), state.until_announced(2));
    let events = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        state.announce(Announcement::new(3)).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        state.end_update(3);
    };
    let started_at = Instant::now();
    let at = |future| async move {
        let result: Result<(), tokio::time::error::Elapsed> = future;
        result.map(|()| started_at.elapsed().as_secs())
    };
    let (served_at, announced_at, ()) =
        tokio::join!(async { at(waiting.await).await }, async { at(announced.await).await }, events);
    assert_eq!((served_at, announced_at), (Ok(2), Ok(1)));
    state.until_served(1).await;
    let never = tokio::time::timeout(Duration::from_secs(5), state.until_served(4)).await;
    assert!(never.is_err());
}

#[tokio::test(start_paused = true)]
async fn ages_count_versions_and_time_and_are_bounded() {
    let state = PolicyState::new(TERMS, 0);
    tokio::time::advance(Duration::from_secs(10)).await;
    state.announce(Announcement::new(1)).unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    state.end_update(1);
    state.announce(Announcement::new(2)).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let seconds = Duration::from_secs;
    let age = |version, versions_behind, announced_for, served_for: Option<u64>| VersionAge {
        version,
        versions_behind,
        announced_for: seconds(announced_for),
        served_for: served_for.map(seconds),
    };
    let expected = [age(0, 2, 16, Some(16)), age(1, 1, 6, Some(1)), age(2, 0, 1, None)];
    assert_eq!(state.ages(), expected);
    for _ in 0..2 * VERSIONS_KEPT {
        state.announce_next();
    }
    let ages = state.ages();
    assert_eq!((ages.len(), ages[0].versions_behind), (VERSIONS_KEPT, VERSIONS_KEPT as u64 - 1));
}
