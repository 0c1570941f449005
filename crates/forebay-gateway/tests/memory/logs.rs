//! `log` of sites and routes: the access log that a request is written to.

use crate::world::in_memory;

const SITES: &str = "[log]\naccess = \"stdout\"\nformat = \"main %U\"\n\
    [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"a\"\n\
    log = { access = \"/tmp/a.log\", format = \"a %U %>s\" }\n\
    [[site.route]]\npath = \"/own\"\nrespond = \"x\"\nlog = { format = \"own %U\" }\n\
    [[site.route]]\npath = \"/off\"\nrespond = \"x\"\nlog = false\n\
    [[site.route]]\npath = \"/here\"\nrespond = \"x\"\nlog = true\n\
    [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"b\"\nlog = \"off\"\n\
    [[site.route]]\npath = \"/own\"\nrespond = \"x\"\nlog = { access = \"/tmp/b.log\" }\n\
    [[site.route]]\nrespond = \"x\"\n\
    [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"c\"\n[[site.route]]\nrespond = \"x\"\n";

#[test]
fn each_request_is_written_to_the_log_of_its_route_or_site() {
    in_memory(SITES, async |world| {
        for (host, target, expected) in [
            ("a", "/here", Some((1, "a /here 200"))),
            ("a", "/none", Some((1, "a /none 404"))),
            ("a", "/own", Some((2, "own /own"))),
            ("a", "/off", None),
            ("b", "/", None),
            ("b", "/own", Some((3, "main /own"))),
            ("c", "/", Some((0, "main /"))),
        ] {
            world.ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            let lines = world.gateway.numbered_lines();
            let expected: Vec<_> =
                expected.into_iter().map(|(number, line)| (number, line.to_owned())).collect();
            assert_eq!(lines, expected, "{host}{target}");
        }
        // A request without a readable head belongs to no site.
        let mut client = world.client();
        client.send("nonsense\r\n\r\n").await;
        client.rest().await.1.unwrap();
        assert!(world.gateway.numbered_lines().iter().all(|(number, _)| *number == 0));
    });
}
