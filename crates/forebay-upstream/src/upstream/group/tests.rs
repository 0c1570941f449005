//! Tests of the order of a group's backends.

use super::*;

fn group(to: &str, more: &str) -> Arc<Group> {
    let text = format!(
        "[[site]]\nlisten = 8080\n[[site.route]]\n[site.route.proxy]\nto = [{to}]\n{more}\n"
    );
    let plan = forebay_conf::parse(&text, "test", std::path::Path::new("/")).unwrap();
    let conf::Action::Proxy(proxy) = &plan.sites[0].routes[0].action else { panic!() };
    Group::new(&(&*proxy.upstream).into())
}

fn picks(group: &Group, count: usize) -> String {
    let turns = Turns::default();
    (0..count).map(|_| letter(group.pick((None, None), 0, &turns))).collect()
}

fn letter(index: Option<usize>) -> char {
    index.map_or('-', |index| (b'a' + index as u8) as char)
}

const THREE: &str = r#""http://a", "http://b", "http://c""#;
const WEIGHTED: &str = r#"
    { url = "http://a", weight = 50 },
    { url = "http://b", weight = 10 },
    { url = "http://c", weight = 10 },
"#;
const BACKUP: &str = r#""http://a", "http://b", { url = "http://c", backup = true }"#;

#[test]
fn backends_take_turns() {
    assert_eq!(picks(&group(THREE, ""), 7), "abcabca");
    assert_eq!(picks(&group(WEIGHTED, ""), 14), "aabacaaaabacaa", "as nginx does");
    assert_eq!(picks(&group(r#""http://a""#, ""), 3), "aaa");
}

#[test]
fn disabled_backends_serve_who_stays_with_them_and_stopped_ones_nobody() {
    let group = group(
        r#""http://a", { url = "http://b", activation = "disabled" },
           { url = "http://c", activation = "stopped" },
           { url = "http://d", activation = "active" }"#,
        "",
    );
    let turns = Turns::default();
    assert_eq!(picks(&group, 4), "adad");
    assert_eq!(group.pick((Some(1), None), 0, &turns), Some(1));
    assert_ne!(group.pick((Some(2), None), 0, &turns), Some(2));
    assert_eq!((group.is_up(1), group.is_up(2)), (true, false));
    // No backend is left after all others were tried.
    assert_eq!(group.pick((None, None), bit(0) | bit(3), &turns), None);
    assert!(group.failed(1));
    assert_ne!(group.pick((Some(1), None), 0, &turns), Some(1), "left out");
}

#[test]
fn turns_are_counted_over_all_threads() {
    let group = group(THREE, "");
    let (one, other) = (Turns::default(), Turns::default());
    let picks: String = (0..6)
        .map(|n| letter(group.pick((None, None), 0, if n % 2 == 0 { &one } else { &other })))
        .collect();
    assert_eq!(picks, "abcabc");
}

#[test]
fn a_failed_backend_is_excluded_and_its_share_distributed() {
    let group = group(THREE, "");
    assert!(group.failed(0), "one failure is enough");
    assert!(!group.failed(0), "it is out already");
    let picks = picks(&group, 10);
    assert_eq!(picks.matches('b').count(), 5, "{picks}");
    assert_eq!(picks.matches('c').count(), 5, "{picks}");
}

#[test]
fn an_only_backend_that_fails_is_down_but_never_left_out() {
    let group = group(r#""http://a""#, "");
    assert!(!group.failed(0), "nothing replaces it");
    assert!(!group.is_up(0), "by its failures");
    assert_eq!(picks(&group, 2), "aa");
    group.succeeded(0);
    assert!(group.is_up(0), "it has answered");
    group.set_well(0, false);
    assert!(!group.is_up(0), "by its health check");
    assert_eq!(picks(&group, 2), "aa", "it is asked nevertheless");
}

#[test]
fn one_request_tries_who_was_left_out_for_long_enough() {
    let group = group(THREE, "fail_timeout = \"1ms\"");
    group.failed(1);
    std::thread::sleep(Duration::from_millis(3));
    let turns = Turns::default();
    assert_eq!(group.pick((None, None), 0, &turns), Some(1));
    group.members[1].record.retry_at.store(u64::MAX / 2, Ordering::Relaxed);
    assert!(!picks(&group, 6).contains('b'), "the others wait for how that goes");
    group.succeeded(1);
    assert!(picks(&group, 6).contains('b'));
    assert_eq!(group.marked.load(Ordering::Relaxed), 0);
}

#[test]
fn failures_count_only_within_their_time() {
    let group = group(THREE, "max_fails = 2\nfail_timeout = \"1h\"");
    assert!(!group.failed(0));
    group.succeeded(0);
    assert!(group.failed(0), "a success in between changes nothing");
    let group = self::group(THREE, "max_fails = 2\nfail_timeout = \"1ms\"");
    for _ in 0..3 {
        assert!(!group.failed(0), "the failure before is too long ago");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!self::group(THREE, "max_fails = 0").failed(0), "nobody counts");
}

#[test]
fn backups_wait_until_all_others_are_down() {
    let group = group(BACKUP, "");
    assert_eq!(picks(&group, 4), "abab");
    group.failed(0);
    assert_eq!(picks(&group, 2), "bb");
    group.set_well(1, false);
    assert_eq!(picks(&group, 2), "cc");
    group.failed(2);
    let all = picks(&group, 4);
    assert!(all == "abab" || all == "baba", "none is up: all are tried, {all}");
    group.set_well(1, true);
    assert_eq!(picks(&group, 2), "bb");
}

#[test]
fn each_is_tried_once() {
    let group = group(BACKUP, "");
    let turns = Turns::default();
    let mut tried = 0;
    let mut order = String::new();
    while let Some(index) = group.pick((None, None), tried, &turns) {
        tried |= bit(index);
        group.failed(index);
        order.push(letter(Some(index)));
    }
    assert_eq!(order, "abc");
}

#[test]
fn least_connections_looks_at_what_is_under_way() {
    let group =
        group(r#"{ url = "http://a", weight = 2 }, "http://b""#, "balance = \"least-connections\"");
    let turns = Turns::default();
    let mut under_way = Vec::new();
    let mut order = String::new();
    for _ in 0..6 {
        let index = group.pick((None, None), 0, &turns).unwrap();
        under_way.push(group.enter(index));
        order.push(letter(Some(index)));
    }
    assert_eq!(order.matches('a').count(), 4, "{order}");
    drop(under_way);
    let idle = picks(&group, 6);
    assert_eq!(idle.matches('a').count(), 4, "by turns while nobody is busy: {idle}");
    let busy = [group.enter(0), group.enter(0), group.enter(0)];
    assert_eq!(picks(&group, 3), "bbb");
    drop(busy);
}

#[test]
fn of_two_random_backends_the_less_loaded_one_is_taken() {
    let more = "balance = \"random-two\"";
    let group = group(&format!("{THREE}, {{ url = \"http://d\", weight = 3 }}"), more);
    // No backend is loaded, so the weights of the first choice decide: 1 : 1 : 1 : 3.
    let idle = picks(&group, 6000);
    for (name, expected) in [('a', 1000), ('b', 1000), ('c', 1000), ('d', 3000)] {
        let count = idle.matches(name).count() as i32;
        assert!((count - expected).abs() < 150, "{name}: {count}");
    }
    // The most loaded backend loses each comparison.
    let busy: Vec<_> = (0..10).map(|_| group.enter(0)).collect();
    assert_eq!(picks(&group, 1000).matches('a').count(), 0);
    drop(busy);
    // The counts follow the requests: no backend is far from its share.
    let turns = Turns::default();
    let mut under_way = Vec::new();
    let mut order = String::new();
    for _ in 0..600 {
        let index = group.pick((None, None), 0, &turns).unwrap();
        under_way.push(group.enter(index));
        order.push(letter(Some(index)));
    }
    for (name, expected) in [('a', 100), ('b', 100), ('c', 100), ('d', 300)] {
        let count = order.matches(name).count() as i32;
        assert!((count - expected).abs() < 12, "{name}: {count}");
    }
    // Backends that were tried, or that are down, are left out.
    let rest = group.pick((None, None), bit(0) | bit(1) | bit(2), &turns);
    assert_eq!(rest, Some(3));
    assert_eq!(group.pick((None, None), bit(0) | bit(1) | bit(2) | bit(3), &turns), None);
    assert!(group.failed(3));
    assert_eq!(picks(&group, 500).matches('d').count(), 0);
}

#[test]
fn the_wanted_backend_is_taken_if_it_is_up() {
    let group = group(BACKUP, "");
    let turns = Turns::default();
    assert_eq!(group.pick((Some(2), None), 0, &turns), Some(2), "even a backup");
    assert_eq!(group.pick((Some(1), None), bit(1), &turns), Some(0));
    group.failed(1);
    assert_eq!(group.pick((Some(1), None), 0, &turns), Some(0));
}

#[test]
fn many_backends_and_large_weights_are_no_trouble() {
    let to: Vec<_> =
        (0..64).map(|n| format!("{{ url = \"http://h{n}\", weight = {} }}", 256 - n)).collect();
    let group = group(&to.join(", "), "");
    let turns = Turns::default();
    let mut seen = 0;
    for _ in 0..100_000 {
        seen |= bit(group.pick((None, None), 0, &turns).unwrap());
    }
    assert_eq!(seen, Set::MAX);
}

const FAR: &str = r#"{ url = "http://a", distance = 1 }, "http://b", "http://c",
    { url = "http://d", distance = 7 }, { url = "http://e", backup = true, distance = 0 }"#;

#[test]
fn the_nearest_that_are_up_are_asked() {
    let group = group(FAR, "");
    assert_eq!(picks(&group, 4), "bcbc");
    group.failed(1);
    assert_eq!(picks(&group, 2), "cc");
    group.failed(2);
    assert_eq!(picks(&group, 2), "aa");
    assert_eq!(
        group.pick((Some(3), None), 0, &Turns::default()),
        Some(3),
        "a session stays far away"
    );
    group.failed(0);
    assert_eq!(picks(&group, 2), "dd");
    group.failed(3);
    assert_eq!(picks(&group, 2), "ee", "backups are farthest");
    group.set_well(2, true);
    assert_eq!(picks(&group, 2), "cc");
}

#[test]
fn all_are_tried_from_near_to_far() {
    let group = group(FAR, "");
    let turns = Turns::default();
    let (mut tried, mut order) = (0, String::new());
    while let Some(index) = group.pick((None, None), tried, &turns) {
        tried |= bit(index);
        order.push(letter(Some(index)));
    }
    assert_eq!(order, "bcade");
}

/// The hot standby `c` replaces `a`, and `a` replaces `b`.
const STANDBY: &str = r#"
    { url = "http://a", route = "a", redirect = "c" },
    { url = "http://b", route = "b", redirect = "a" },
    { url = "http://c", route = "c", activation = "disabled" }
"#;

#[test]
fn a_session_goes_where_its_backend_redirects() {
    let group = group(STANDBY, "");
    let turns = Turns::default();
    assert_eq!(picks(&group, 4), "abab", "nobody else goes to the standby");
    group.failed(0);
    assert_eq!(group.pick((Some(0), None), 0, &turns), Some(2));
    assert_eq!(picks(&group, 2), "bb");
    // `redirect` also applies if this request has tried a backend before.
    assert_eq!(
        group.pick((Some(1), None), bit(1), &turns),
        Some(2),
        "a, to which b redirects, is out"
    );
    group.set_well(0, true);
    assert_eq!(group.pick((Some(0), None), 0, &turns), Some(0));
    assert_eq!(group.pick((Some(1), None), bit(1), &turns), Some(0));
    group.failed(2);
    assert_eq!(group.pick((Some(0), None), bit(0), &turns), Some(1), "whose turn it is");
}

#[test]
fn the_first_redirection_serves_all_when_nobody_else_is_up() {
    let group = group(STANDBY, "");
    let turns = Turns::default();
    group.failed(0);
    group.failed(1);
    assert_eq!(picks(&group, 3), "ccc");
    assert_eq!(group.pick((None, None), bit(2), &turns), Some(0), "tried although it is out");
    group.failed(2);
    assert_eq!(
        group.pick((Some(1), None), 0, &turns),
        Some(1),
        "none is up: the session's own first"
    );
    assert_eq!(
        group.pick((None, None), bit(0) | bit(1), &turns),
        Some(2),
        "none but the standby is left"
    );
    assert_eq!(group.pick((None, None), bit(0) | bit(1) | bit(2), &turns), None);
}

#[test]
fn the_only_active_backend_is_left_out_where_a_standby_can_replace_it() {
    let to = r#"{ url = "http://a", route = "a", redirect = "b" },
        { url = "http://b", route = "b", activation = "disabled" }"#;
    let pair = group(to, "");
    assert!(pair.failed(0));
    assert_eq!(picks(&pair, 2), "bb");
    let alone = group(r#""http://a", { url = "http://b", activation = "disabled" }"#, "");
    assert!(!alone.failed(0), "nobody replaces it");
    assert_eq!(picks(&alone, 2), "aa");
}

#[test]
fn a_session_of_a_stopped_backend_goes_where_that_redirects() {
    let to = r#""http://a", { url = "http://b", route = "b" },
        { url = "http://c", activation = "stopped", redirect = "b" }"#;
    let group = group(to, "");
    let turns = Turns::default();
    for _ in 0..3 {
        assert_eq!(group.pick((Some(2), None), 0, &turns), Some(1));
    }
}

#[test]
fn recover_time_is_how_long_one_is_left_alone() {
    let group = group(THREE, "fail_timeout = \"1h\"\nrecover_time = \"1ms\"");
    group.failed(1);
    std::thread::sleep(Duration::from_millis(3));
    assert_eq!(group.pick((None, None), 0, &Turns::default()), Some(1));
    let group = self::group(THREE, "fail_timeout = \"1ms\"\nrecover_time = \"1h\"");
    group.failed(1);
    std::thread::sleep(Duration::from_millis(3));
    assert!(!picks(&group, 6).contains('b'), "not yet");
}

#[test]
fn a_key_keeps_its_backend_and_moves_only_with_it() {
    let mut balancing = Balancing::equal(4);
    for (index, rank) in balancing.to.iter_mut().enumerate() {
        rank.identity = stable_hash(format!("10.0.0.{index}:80").as_bytes());
    }
    balancing.to[3].weight = 3;
    let group = Group::new(&balancing);
    let turns = Turns::default();
    let pick =
        |key: u64, tried| group.pick((None, Some(stable_hash(&key.to_be_bytes()))), tried, &turns);
    let before: Vec<_> = (0..6000).map(|key| pick(key, 0).unwrap()).collect();
    let again: Vec<_> = (0..6000).map(|key| pick(key, 0).unwrap()).collect();
    assert_eq!(before, again);
    let share = |index| before.iter().filter(|&&picked| picked == index).count();
    for (index, expected) in [(0, 1000), (1, 1000), (2, 1000), (3, 3000)] {
        let found = share(index);
        assert!(found.abs_diff(expected) < 200, "{index} has {found} of 6000");
    }
    assert!(group.failed(1), "it is excluded");
    for (key, &backend) in (0..6000).zip(&before) {
        let now = pick(key, 0).unwrap();
        assert!(if backend == 1 { now != 1 } else { now == backend }, "{key}");
    }
    // Each attempt takes the next best backend.
    assert_ne!(pick(7, bit(before[7])), Some(before[7]));
    assert_eq!(pick(7, 0b1111), None);
}

/// Returns the number of picks of the first backend among 3000, and the percentage of its weight.
fn first_of(group: &Group) -> (usize, Option<u64>) {
    let turns = Turns::default();
    let is_first = |key: &u64| {
        let key = (group.balance == conf::Balance::Hash).then(|| stable_hash(&key.to_be_bytes()));
        group.pick((None, key), 0, &turns) == Some(0)
    };
    ((0..3000).filter(is_first).count(), group.slow_start_percent(0))
}

#[tokio::test(start_paused = true)]
async fn a_recovered_backend_gets_its_share_gradually_with_every_method() {
    for balance in ["round-robin", "least-connections", "random-two", "hash", "least-time"] {
        let keys = format!("balance = \"{balance}\"\nslow_start = \"100s\"\n");
        for is_by_health in [false, true] {
            let group = group(THREE, &keys);
            let near = |seen: (usize, Option<u64>), expected: usize, percent| {
                assert!(seen.0.abs_diff(expected) < 120, "{balance}: {} of {expected}", seen.0);
                assert_eq!(seen.1, percent, "{balance}");
            };
            tokio::time::advance(Duration::from_secs(1)).await;
            near(first_of(&group), 1000, None);
            if is_by_health {
                group.set_well(0, false);
                near(first_of(&group), 0, None);
                group.set_well(0, true);
            } else {
                assert!(group.failed(0));
                near(first_of(&group), 0, None);
                group.succeeded(0);
            }
            near(first_of(&group), 0, Some(0));
            tokio::time::advance(Duration::from_secs(20)).await;
            let expected = if balance == "hash" { 273 } else { 200 };
            near(first_of(&group), expected, Some(20));
            tokio::time::advance(Duration::from_secs(30)).await;
            let (picked, percent) = first_of(&group);
            assert!(picked > 380 && picked < 720 && percent == Some(50), "{balance}: {picked}");
            tokio::time::advance(Duration::from_secs(50)).await;
            near(first_of(&group), 1000, None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn backends_that_all_come_back_at_once_serve_at_once() {
    let group = group(THREE, "slow_start = \"1h\"");
    for index in 0..3 {
        group.failed(index);
        group.succeeded(index);
    }
    let picks = picks(&group, 300);
    assert!(!picks.contains('-') && "abc".chars().all(|one| picks.contains(one)), "{picks}");
    // A retry takes a backend in its slow start if no other is left.
    assert_eq!(group.pick((None, None), bit(0) | bit(1), &Turns::default()), Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_load_of_a_slow_backend_is_bounded_by_its_share() {
    let keys = "balance = \"least-connections\"\nslow_start = \"100s\"";
    let group = group(THREE, keys);
    group.failed(0);
    group.succeeded(0);
    tokio::time::advance(Duration::from_secs(20)).await;
    let (turns, mut held) = (Turns::default(), Vec::new());
    for _ in 0..1100 {
        let index = group.pick((None, None), 0, &turns).unwrap();
        held.push(group.enter(index));
    }
    let active = |index: usize| group.members[index].record.under_way.load(Ordering::Relaxed);
    assert!(active(0).abs_diff(100) < 25, "a fifth of {} and {}", active(1), active(2));
}
