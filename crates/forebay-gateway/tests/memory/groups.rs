//! Groups of backends, `[upstream.NAME]`: the state that their routes share and that a reload
//! keeps.

use forebay_admin::BackendsOf;
use tokio::task::{JoinHandle, spawn_local};

use crate::world::{World, in_memory};

/// Starts the backend with this number, which answers each SCGI request with the number.
fn numbered(world: &World, number: u8) -> JoinHandle<()> {
    let mut backend = world.backend(&format!("10.0.0.{number}:9000"));
    spawn_local(async move {
        loop {
            let mut connection = backend.accept().await;
            connection.more().await.unwrap();
            connection.send(format!("Content-Type: text/plain\r\n\r\n{number}")).await;
            connection.link.finish();
            spawn_local(async move { connection.rest().await });
        }
    })
}

/// Returns the numbers of the backends that answer `count` requests for this path.
async fn numbers(world: &World, path: &str, count: usize) -> String {
    let mut numbers = String::new();
    for _ in 0..count {
        let reply = world.ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        assert_eq!(reply.status(), 200, "{:#?}", world.errors());
        numbers.push_str(reply.text());
    }
    numbers
}

/// Returns two routes that name the group, and its table.
fn two_routes(table: &str) -> String {
    format!(
        "[[site.route]]\npath = \"/a/*\"\nscgi = {{ to = \"@app\" }}\n\
         [[site.route]]\npath = \"/b/*\"\nscgi = {{ to = [\"@app\"], mount = \"/b\" }}\n\
         [upstream.app]\n{table}\n"
    )
}

#[test]
fn routes_to_a_group_share_its_turns_by_weight() {
    let table = "to = [{ url = \"10.0.0.1:9000\", weight = 2 }, \"10.0.0.2:9000\"]";
    in_memory(&two_routes(table), async |world| {
        let _served = (numbered(world, 1), numbered(world, 2));
        let mut order = String::new();
        for path in ["/a/", "/b/", "/b/", "/a/", "/b/", "/a/"] {
            order += &numbers(world, path, 1).await;
        }
        assert_eq!(order, "121121");
    });
}

#[test]
fn routes_share_the_state_of_a_dead_backend() {
    in_memory(&two_routes("to = [\"10.0.0.1:9000\", \"10.0.0.2:9000\"]"), async |world| {
        let _served = numbered(world, 2);
        assert_eq!(numbers(world, "/a/", 2).await, "22");
        let errors = world.errors();
        assert!(errors.len() == 1 && errors[0].contains("left out"), "{errors:#?}");
        assert_eq!(numbers(world, "/b/", 4).await, "2222");
        assert_eq!(world.errors(), [""; 0], "it was not tried again");
        let rows = world.status().backends;
        assert_eq!(rows.len(), 2, "those of a group are shown once");
        assert!(matches!(&rows[0].of, BackendsOf::Upstream(name) if name == "app"), "{rows:?}");
        let seen: Vec<_> = rows.iter().map(|row| (row.is_up, row.requests, row.failures)).collect();
        assert_eq!(seen, [(false, 1, 1), (true, 6, 0)]);
    });
}

#[test]
fn a_backup_of_a_group_serves_when_the_others_are_down() {
    let table = "to = [\"10.0.0.1:9000\", { url = \"10.0.0.2:9000\", backup = true }]\n\
                 fail_timeout = \"5s\"";
    in_memory(&two_routes(table), async |world| {
        let _backup = numbered(world, 2);
        assert_eq!(numbers(world, "/a/", 2).await, "22");
        let _served = numbered(world, 1);
        tokio::time::sleep(std::time::Duration::from_secs(6)).await;
        assert_eq!(numbers(world, "/b/", 2).await, "11");
    });
}

#[test]
fn a_reload_keeps_what_is_known_of_a_group_though_it_changes() {
    let to = "to = [\"10.0.0.1:9000\", \"10.0.0.2:9000\"]";
    in_memory(&two_routes(to), async |world| {
        let _served = (numbered(world, 2), numbered(world, 3));
        assert_eq!(numbers(world, "/a/", 2).await, "22");
        assert_eq!(world.errors().len(), 1);
        let more = "balance = \"least-connections\"\n\
                    to = [\"10.0.0.3:9000\", \"10.0.0.2:9000\", \"10.0.0.1:9000\"]";
        for table in [to, more] {
            world.reload_as(&two_routes(table));
            numbers(world, "/b/", 6).await;
            assert_eq!(world.errors(), [""; 0], "it is left out still: {table}");
        }
    });
}

#[test]
fn a_reload_keeps_what_is_known_of_backends_without_a_name_wherever_their_route_stands() {
    let route = "[[site.route]]\npath = \"/a/*\"\n\
                 scgi = { to = [\"10.0.0.1:9000\", \"10.0.0.2:9000\"] }\n";
    in_memory(route, async |world| {
        let _served = numbered(world, 2);
        assert_eq!(numbers(world, "/a/", 2).await, "22");
        assert_eq!(world.errors().len(), 1);
        let other = "[[site.route]]\npath = \"/b/*\"\nscgi = { to = \"10.0.0.1:9000\" }\n";
        world.reload_as(&format!("{other}{}", route.replace("] }", "], mount = \"/a\" }")));
        assert_eq!(numbers(world, "/a/", 4).await, "2222");
        assert_eq!(world.errors(), [""; 0], "it is left out still");
    });
}

#[test]
fn distance_and_recover_time_are_for_every_protocol() {
    let table = "to = [{ url = \"10.0.0.1:9000\", distance = 1 }, \"10.0.0.2:9000\"]\n\
                 recover_time = \"5s\"";
    in_memory(&two_routes(table), async |world| {
        let _far = numbered(world, 1);
        assert_eq!(numbers(world, "/a/", 2).await, "11", "the nearer one is down");
        let _near = numbered(world, 2);
        assert_eq!(numbers(world, "/b/", 2).await, "11", "and left alone");
        tokio::time::sleep(std::time::Duration::from_secs(6)).await;
        assert_eq!(numbers(world, "/b/", 2).await, "22");
    });
}
