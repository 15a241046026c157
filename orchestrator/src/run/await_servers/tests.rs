#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::*;

const TERMS: Terms = Terms {
    enough: 1,
    grace: Duration::from_secs(5),
    unreachable_max: Duration::from_secs(5),
    asked_max: Duration::from_secs(60),
};

/// How a server reacts when it is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    Answers,
    /// The server answers after this many seconds.
    Takes(u64),
    /// The server answers with status 503.
    IsBusy,
    /// The server closes the connection in the middle of its answer.
    CutsOff,
    Refuses,
    /// The server serves another model.
    IsWrong,
    IsSilent,
}

use Does::{Answers, CutsOff, IsBusy, IsSilent, IsWrong, Refuses, Takes};

/// Starts a run. Each server reacts to successive calls as its list says, and repeats the last entry. Returns
/// the names of the ready and of the absent servers, or the error, with the duration in seconds.
async fn start(terms: Terms, servers: &[&[Does]]) -> (Result<(String, String), String>, u64) {
    let endpoint = |number: usize| Endpoint { name: format!("s{number}"), url: format!("http://s{number}") };
    let endpoints: Vec<Endpoint> = (0..servers.len()).map(endpoint).collect();
    let asked: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let ask = |endpoint: Endpoint| {
        let number: usize = endpoint.name[1..].parse().unwrap();
        let times = {
            let mut asked = asked.lock();
            let times = asked.entry(endpoint.name.clone()).or_default();
            *times += 1;
            *times
        };
        let does = servers[number][times.min(servers[number].len()) - 1];
        async move {
            let (server, reason) = (endpoint.name, format!("{does:?}"));
            match does {
                Answers => Ok(()),
                Takes(seconds) => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok(())
                }
                IsBusy => Err(EngineError::Busy { server, retry_after: None, reason }),
                CutsOff => Err(EngineError::Failed { server, reason }),
                Refuses => Err(EngineError::Unreachable { server, reason }),
                IsWrong => Err(EngineError::Unfit { server, reason }),
                IsSilent => std::future::pending().await,
            }
        }
    };
    let began = Instant::now();
    let names = |endpoints: Vec<Endpoint>| {
        endpoints.into_iter().map(|endpoint| endpoint.name).collect::<Vec<_>>().join(" ")
    };
    let found = await_servers(endpoints, &terms, ask).await;
    let found = found.map(|found| {
        (names(found.ready.into_iter().map(|(endpoint, ())| endpoint).collect()), names(found.absent))
    });
    (found.map_err(|error| error.to_string()), began.elapsed().as_secs())
}

fn found(ready: &str, absent: &str) -> Result<(String, String), String> {
    Ok((ready.to_owned(), absent.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn one_bad_answer_prevents_no_start() {
    for bad in [IsBusy, CutsOff, Refuses] {
        assert_eq!(start(TERMS, &[&[bad, Answers]]).await, (found("s0", ""), 0), "{bad:?}");
        assert_eq!(start(TERMS, &[&[bad, bad, bad, bad, Answers]]).await, (found("s0", ""), 3), "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_bad_server_prevents_no_start_and_is_left_for_later() {
    for bad in [IsBusy, CutsOff, Refuses] {
        assert_eq!(start(TERMS, &[&[bad], &[Answers]]).await, (found("s1", "s0"), 0), "{bad:?}");
    }
    assert_eq!(start(TERMS, &[&[IsSilent], &[Answers]]).await, (found("s1", "s0"), 5), "after its grace");
    assert_eq!(start(TERMS, &[&[Takes(3)], &[Answers]]).await, (found("s0 s1", ""), 3), "it had its grace");
    assert_eq!(start(TERMS, &[&[Takes(30)], &[Answers]]).await, (found("s1", "s0"), 5));
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_until_enough_servers_answer() {
    let both = Terms { enough: 2, ..TERMS };
    assert_eq!(start(both, &[&[Takes(30)], &[Answers], &[IsSilent]]).await, (found("s0 s1", "s2"), 30));
    assert_eq!(start(both, &[&[IsBusy, IsBusy, Answers], &[Answers]]).await, (found("s0 s1", ""), 0));
    let (error, seconds) = start(both, &[&[Answers], &[Refuses]]).await;
    assert_eq!(
        error.unwrap_err(),
        "1 of 2 servers answer, expected at least fleet.servers_min=2: cannot reach server=s1: Refuses"
    );
    assert!((3..=5).contains(&seconds), "{seconds}: no connection can be made");
    let (error, seconds) = start(both, &[&[Answers], &[IsSilent]]).await;
    assert!(
        error
            .unwrap_err()
            .ends_with("server=s1 at http://s1 gives no answer to the probe within 60 s; is it paused?")
    );
    assert_eq!(seconds, 60);
    let (error, seconds) = start(TERMS, &[&[IsBusy]]).await;
    assert!(error.unwrap_err().contains("server=s0 is busy"));
    assert!((58..=60).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_still_starting_are_waited_for_as_long_as_asked() {
    let wait = Duration::from_secs(600);
    let waits = Terms { unreachable_max: wait, asked_max: wait, ..TERMS };
    let starting = [&[Refuses; 200][..], &[Answers]].concat();
    let (answered, seconds) = start(waits, &[&starting, &[Refuses]]).await;
    assert_eq!(answered, found("s0", "s1"));
    assert!((390..=400).contains(&seconds), "{seconds}");
    let (error, seconds) = start(waits, &[&[Refuses]]).await;
    assert!(error.is_err() && (598..=600).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_serve_the_recipe_ends_the_start() {
    let expected = Err("server=s1 does not fit the recipe: IsWrong".to_owned());
    assert_eq!(start(TERMS, &[&[IsSilent], &[IsWrong]]).await, (expected.clone(), 0));
    assert_eq!(start(TERMS, &[&[IsSilent], &[IsBusy, IsWrong]]).await, (expected, 0));
}

#[tokio::test(start_paused = true)]
async fn many_absent_servers_are_listed_in_part() {
    let (error, _) = start(Terms { asked_max: Duration::from_secs(1), ..TERMS }, &[&[IsBusy][..]; 20]).await;
    let error = error.unwrap_err();
    assert!(error.starts_with("0 of 20 servers answer") && error.ends_with("; and 12 more"), "{error}");
}
