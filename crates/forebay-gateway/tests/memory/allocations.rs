//! A warm kept connection allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::world::{Peer, World, in_memory};

/// Counts the allocations of each thread, and their bytes.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    // At the end of a thread, its counters no longer exist.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    let _ = BYTES.try_with(|count| count.set(count.get() + bytes));
}

// SAFETY: every call goes to the system's allocator, which fulfils the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's layout is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUEST: &[u8] = b"GET /small.html HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n";
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nServer: s\r\nDate: Sun, 22 Nov 2026 19:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 7\r\n\r\n<p>Page";

/// Reads until `end`, with no memory beyond that of `read`.
async fn read_to(peer: &Peer, read: &mut Vec<u8>, end: &[u8]) {
    read.clear();
    while !read.ends_with(end) {
        assert!(peer.link.read(read).await.unwrap() > 0, "{}", String::from_utf8_lossy(read));
    }
}

/// Returns the smallest number of allocations in this thread during one of ten rounds of requests,
/// after a warm-up round. In some rounds a new second may begin, in which files are checked again.
async fn fewest(world: &World, mut backend: Option<Peer>, client: Peer, request: &[u8]) -> usize {
    const REQUESTS: usize = 20;
    let mut read = Vec::with_capacity(4096);
    let mut asked = Vec::with_capacity(4096);
    let mut fewest = usize::MAX;
    for _ in 0..11 {
        let before = ALLOCATIONS.get();
        for _ in 0..REQUESTS {
            client.link.write(request).await.unwrap();
            if let Some(backend) = &mut backend {
                read_to(backend, &mut asked, b"\r\n\r\n").await;
                backend.link.write(REPLY).await.unwrap();
            }
            read_to(&client, &mut read, b"<p>Page").await;
        }
        fewest = fewest.min(ALLOCATIONS.get() - before);
    }
    assert!(world.errors().is_empty());
    fewest
}

#[test]
fn a_proxied_request_over_kept_connections_allocates_nothing() {
    in_memory("[[site.route]]\nproxy = \"http://127.0.0.1:8001\"", async |world| {
        let mut backend = world.backend("127.0.0.1:8001");
        let client = world.client();
        client.link.write(REQUEST).await.unwrap();
        let (_, connection) = backend.answer(std::str::from_utf8(REPLY).unwrap()).await;
        read_to(&client, &mut Vec::new(), b"<p>Page").await;
        assert_eq!(fewest(world, Some(connection), client, REQUEST).await, 0);
    });
}

#[test]
fn a_small_file_for_a_kept_connection_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.html"), "<p>Page").unwrap();
    let route = format!("[[site.route]]\npath = \"/*\"\nfiles = {:?}", dir.path());
    in_memory(&route, async |world| {
        let client = world.client();
        assert_eq!(fewest(world, None, client, REQUEST).await, 0);
    });
}

#[test]
fn conditions_request_fields_and_a_rate_limit_allocate_nothing() {
    let route = "[[site.route]]\nproxy = \"http://127.0.0.1:8001\"\nwhen = { header.Accept = true }\n\
                 request_headers = { \"X-Real-IP\" = \"{client}\", Accept = \"text/html\" }\n\
                 rate_limit = { rate = \"1000000/s\" }";
    in_memory(route, async |world| {
        let mut backend = world.backend("127.0.0.1:8001");
        let client = world.client();
        client.link.write(REQUEST).await.unwrap();
        let (asked, connection) = backend.answer(std::str::from_utf8(REPLY).unwrap()).await;
        assert_eq!(asked.values("accept"), ["text/html"]);
        read_to(&client, &mut Vec::new(), b"<p>Page").await;
        assert_eq!(fewest(world, Some(connection), client, REQUEST).await, 0);
    });
}

#[test]
fn many_names_with_marks_allocate_nothing() {
    let site = "[[site]]\nlisten = \"127.0.0.1:80\"\nunderscores_in_headers = true\n\
                [[site.route]]\nproxy = \"http://127.0.0.1:8001\"\n";
    in_memory(site, async |world| {
        let mut backend = world.backend("127.0.0.1:8001");
        let client = world.client();
        let names: String = (10..100).map(|number| format!("X_Name.{number}: 1\r\n")).collect();
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{names}X-Name-10: 2\r\n\r\n");
        client.link.write(request.as_bytes()).await.unwrap();
        let (asked, connection) = backend.answer(std::str::from_utf8(REPLY).unwrap()).await;
        assert_eq!(asked.values("x_name.11"), ["1"]);
        assert_eq!(asked.field("x_name.10"), None);
        read_to(&client, &mut Vec::new(), b"<p>Page").await;
        let request = request.as_bytes();
        assert_eq!(fewest(world, Some(connection), client, request).await, 0);
    });
}

#[test]
fn rules_for_a_long_path_cost_memory_in_proportion_to_it() {
    let rule = |pattern: usize| {
        format!(
            "[[site.route]]\npath_regex = \"/x{pattern}/y$\"\npath = \"/x*\"\ndeny = \"all\"\nBACKEND\n"
        )
    };
    let rules: String = (0..20).map(rule).collect();
    let exact = "[[site.route]]\npath = \"/admin.php\"\ndeny = \"all\"\nBACKEND\n";
    let site = format!(
        "[server.limits]\ntarget = \"64KiB\"\nhead_size = \"128KiB\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
         {rules}{exact}[[site.route]]\nBACKEND\n"
    );
    for backend in [
        "proxy = \"http://10.0.0.1:1\"",
        "ajp = { to = \"10.0.0.1:1\" }",
        "fastcgi = { to = \"10.0.0.1:1\", root = \"/no/such\" }",
        "scgi = { to = \"10.0.0.1:1\", root = \"/no/such\" }",
    ] {
        in_memory(&site.replace("BACKEND", backend), async |world| {
            let bytes = async |heads: usize| {
                let path = "a.b/".repeat(heads);
                let request = format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n");
                let before = BYTES.get();
                // 431: such a path fits into no packet of AJP, and no head of uwsgi.
                assert!(matches!(world.ask(&request).await.status(), 431 | 502), "{backend}");
                BYTES.get() - before
            };
            let (few, many) = (bytes(4000).await, bytes(16000).await);
            assert!(many <= 5 * few && many < 64 * 64 * 1024, "{backend}: {few}, {many}");
        });
    }
}
