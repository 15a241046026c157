//! Servers that join and leave.

use futures::FutureExt;
use parking_lot::Mutex;

use super::*;
use crate::{BalancerConfig, PermitRequest};

#[derive(Default)]
struct Door {
    asked: Mutex<Vec<String>>,
    dismissed: Mutex<Vec<String>>,
}

impl Enlist for Door {
    fn enlist<'a>(&'a self, _: &'a str, url: &'a str) -> BoxFuture<'a, Result<(), EnlistError>> {
        let times = {
            let mut asked = self.asked.lock();
            asked.push(url.to_owned());
            asked.iter().filter(|asked| *asked == url).count()
        };
        let fit = if url.contains("unfit") {
            Err(EnlistError::Unfit("it serves another model".to_owned()))
        } else if url.contains("late") && times < 3 {
            Err(EnlistError::Absent("it is busy".to_owned()))
        } else {
            Ok(())
        };
        let is_silent = url.contains("silent");
        async move {
            if is_silent {
                std::future::pending::<()>().await;
            }
            fit
        }
        .boxed()
    }

    fn dismiss(&self, name: &str) {
        self.dismissed.lock().push(name.to_owned());
    }
}

fn membership() -> (Membership, Arc<Door>) {
    let door = Arc::new(Door::default());
    let balancer = LoadBalancer::new(BalancerConfig::default(), Vec::new()).unwrap();
    (Membership::new(balancer, Arc::clone(&door) as Arc<dyn Enlist>, 4), door)
}

fn member(url: &str) -> NewMember {
    NewMember { url: url.to_owned(), name: None, capacity: None }
}

/// Servers and their states, in the order in which they joined.
fn names(fleet: &Membership) -> Vec<String> {
    let servers = fleet.balancer().snapshot().servers;
    servers.iter().map(|server| format!("{} {}", server.name, server.state.as_str())).collect()
}

async fn until(fleet: &Membership, expected: &[&str]) {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(20);
    while names(fleet) != expected {
        assert!(tokio::time::Instant::now() < give_up, "{:?} is not {expected:?}", names(fleet));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn servers_join_are_drained_and_leave_while_requests_run() {
    let (fleet, door) = membership();
    let joined = fleet.add(member("http://a:1/")).await.unwrap();
    assert_eq!((&*joined.name, joined.capacity), ("a:1", 4));
    for (url, words) in [
        ("ftp://a", "the scheme http"),
        ("https://a", "the scheme http"),
        ("http://unfit:1", "another model"),
        ("a:1", "http://host:port"),
        ("http://a:2/v1/", "expected no /v1"),
        ("http://me:secret@a:2", "no user, password"),
        ("http://a:2?b=c", "no user, password, query"),
    ] {
        let error = fleet.add(member(url)).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let twice = fleet.add(member("http://a:1")).await.unwrap_err().to_string();
    assert!(twice.contains("in the fleet already"), "{twice}");

    let held = fleet.balancer().acquire(PermitRequest::new(1)).await.unwrap();
    assert_eq!(fleet.drain("a:1", Duration::from_secs(1)).await.unwrap(), 1);
    let (left, ()) = tokio::join!(fleet.drain("a:1", Duration::from_secs(5)), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(held);
    });
    assert_eq!(left.unwrap(), 0);
    fleet.set_paused("a:1", false).unwrap();
    assert!(fleet.balancer().acquire(PermitRequest::new(1)).now_or_never().is_some());
    fleet.remove("a:1").unwrap();
    assert_eq!(*door.dismissed.lock(), ["a:1"]);
    assert!(fleet.remove("a:1").unwrap_err().to_string().contains("unknown server=a:1"));
}

#[tokio::test]
async fn a_file_lists_the_members_and_a_wrong_one_changes_nothing() {
    let (fleet, _) = membership();
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |text: &str| std::fs::write(file.path(), text).unwrap();
    let end = CancellationToken::new();
    let following = fleet.follow(file.path().to_owned(), end.clone());
    let testing = async {
        write("endpoints = [\"http://a:1\", \"http://b:1\", \"http://unfit:1\"]");
        until(&fleet, &["a:1 active", "b:1 active"]).await;
        let held = fleet.balancer().acquire(PermitRequest::new(4)).await.unwrap();
        let name = held.server_name();
        let other = if &*name == "a:1" { "b:1" } else { "a:1" };
        write(&format!("endpoints = [\"http://{other}\"]"));
        let mut expected = [format!("{name} draining"), format!("{other} active")];
        expected.sort();
        until(&fleet, &expected.each_ref().map(String::as_str)).await;
        write("endpoints = nonsense");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        until(&fleet, &expected.each_ref().map(String::as_str)).await;
        write(&format!("endpoints = [\"http://{other}\"] # sound again"));
        drop(held);
        until(&fleet, &[&format!("{other} active")]).await;
        // The file does not remove a server that was added by a call.
        fleet.add(member("http://c:1")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        until(&fleet, &[&format!("{other} active"), "c:1 active"]).await;
        end.cancel();
    };
    tokio::join!(following, testing);
}

#[tokio::test(start_paused = true)]
async fn requests_on_a_departed_server_can_still_be_aborted() {
    let (fleet, door) = membership();
    fleet.add(member("http://a:1")).await.unwrap();
    let held = fleet.balancer().acquire(PermitRequest::new(1)).await.unwrap();
    fleet.remove("a:1").unwrap();
    assert!(held.revoked().now_or_never().is_some());
    let look = async || drop(fleet.changed(Duration::from_millis(1)).await);
    tokio::time::advance(Duration::from_secs(30)).await;
    look().await;
    assert!(door.dismissed.lock().is_empty(), "its holder has not heard of it");
    drop(held);
    look().await;
    assert!(door.dismissed.lock().is_empty(), "aborts are sent again for a while");
    tokio::time::advance(ABORT_GRACE).await;
    look().await;
    assert_eq!(*door.dismissed.lock(), ["a:1"]);

    fleet.add(member("http://a:1")).await.unwrap();
    let _held = fleet.balancer().acquire(PermitRequest::new(1)).await.unwrap();
    fleet.remove("a:1").unwrap();
    fleet.add(member("http://a:1")).await.unwrap();
    assert_eq!(door.dismissed.lock().len(), 2, "before it is there again");
    tokio::time::advance(2 * LEAVE_MAX).await;
    look().await;
    assert_eq!(door.dismissed.lock().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn servers_that_answer_late_join_and_those_that_do_not_fit_stay_out() {
    let (fleet, door) = membership();
    let absent = ["http://unfit:1", "http://silent:1", "http://late:1", "http://late:2"].map(member).to_vec();
    let end = CancellationToken::new();
    let testing = async {
        let early = fleet.add(member("http://late:2")).await.unwrap_err();
        assert!(matches!(early, MembershipError::Absent { .. }), "{early}");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(names(&fleet).is_empty());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(names(&fleet), ["late:2 active", "late:1 active"]);
        fleet.remove("late:1").unwrap();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(names(&fleet), ["late:2 active"], "an operator has removed the other one");
        let asked = door.asked.lock().iter().filter(|url| url.contains("unfit")).count();
        assert!((20..=25).contains(&asked), "it is asked {asked} times, ever more rarely");
        end.cancel();
    };
    tokio::join!(fleet.admit(absent, end.clone()), testing);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_places_cannot_join() {
    let (fleet, _) = membership();
    let empty = NewMember { capacity: Some(0), ..member("http://a:1") };
    let error = fleet.add(empty).await.unwrap_err().to_string();
    assert!(error.contains("capacity above 0"), "{error}");
}

#[tokio::test]
async fn a_silent_server_of_the_file_delays_no_other_and_addresses_are_compared_in_canonical_form() {
    let (fleet, door) = membership();
    fleet.add(member("http://b:1")).await.unwrap();
    fleet.add(member("http://d:1")).await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |text: &str| std::fs::write(file.path(), text).unwrap();
    write("endpoints = [\"http://a-silent:1\", \"http://b:1/\", \"http://c:1\"]");
    let end = CancellationToken::new();
    let testing = async {
        until(&fleet, &["b:1 active", "d:1 active", "c:1 active"]).await;
        write("endpoints = [\"http://a-silent:1\", \"http://b:1\"]");
        until(&fleet, &["b:1 active", "d:1 active"]).await;
        assert_eq!(door.asked.lock().iter().filter(|url| url.contains("silent")).count(), 1);
        end.cancel();
    };
    tokio::join!(fleet.follow(file.path().to_owned(), end.clone()), testing);
}

#[tokio::test]
async fn a_server_is_reached_however_its_address_is_written_and_named_as_it_can_be_shown() {
    let (fleet, _) = membership();
    for (url, name, base) in [
        ("HTTP://Host:1/", "Host:1", "http://host:1"),
        ("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000"),
        ("http://gateway:80/pool/a/", "gateway:80/pool/a", "http://gateway/pool/a"),
    ] {
        let joined = fleet.add(member(url)).await.unwrap();
        assert_eq!((&*joined.name, joined.url.as_deref()), (name, Some(base)));
    }
    for name in ["", "two words", "a\"b", "back\\slash", "line\n"] {
        let named = NewMember { name: Some(name.to_owned()), ..member("http://c:1") };
        let error = fleet.add(named).await.unwrap_err().to_string();
        assert!(error.contains("expected a name of visible ASCII letters"), "{name:?}: {error}");
    }
}
