use super::*;

#[test]
fn the_strongest_comes_first() {
    let names = |choice, is_privileged| -> Vec<String> {
        let levels = strongest_first(choice, is_privileged);
        levels.iter().map(|(level, is_locked)| format!("{} {is_locked}", level.name())).collect()
    };
    assert_eq!(
        names(SandboxChoice::Auto, false),
        ["bubblewrap true", "namespaces true", "bubblewrap false", "namespaces false", "limits false"]
    );
    assert_eq!(
        names(SandboxChoice::Auto, true),
        ["namespaces true", "bubblewrap false", "namespaces false", "limits false"]
    );
    assert_eq!(names(SandboxChoice::Bubblewrap, true), ["bubblewrap false"]);
    assert_eq!(names(SandboxChoice::Limits, false), ["limits false"]);
}

#[test]
fn a_kernel_version_is_two_numbers() {
    for (release, wanted) in
        [("6.18.44-x\n", (6, 18)), ("5.4.0-150-generic", (5, 4)), ("", (0, 0)), ("x.y", (0, 0))]
    {
        assert_eq!(version(release), wanted, "{release:?}");
    }
}

#[test]
fn a_trial_that_sees_the_host_fails() {
    let sight = |sees: bool, kind: &str| {
        let own = |kind: &str| {
            std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().to_string_lossy().into_owned()
        };
        let other = |of: &str| if of == kind { own(of) } else { format!("{of}:[1]") };
        Sight { sees, namespaces: [other("net"), other("pid"), other("mnt")], forks: 0 }
    };
    assert_eq!(apart(&sight(false, "none")), Ok(()));
    assert!(apart(&sight(true, "none")).unwrap_err().contains("files"));
    for kind in ["net", "pid", "mnt"] {
        assert!(apart(&sight(false, kind)).unwrap_err().contains(kind));
    }
    let blind = Sight { sees: false, namespaces: Default::default(), forks: 0 };
    assert!(apart(&blind).is_err());
}
