//! Tests that an HTTP/2 connection whose buffers have grown allocates no more memory, neither for
//! heads nor for other frames. This holds for both roles.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use forebay_wire::fields::Fields;
use forebay_wire::http2::{Config, Connection, Event, RequestPseudo};

/// Allocator that counts its allocations. This file contains only one test, so no other test of the
/// process allocates memory.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator, which fulfils the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the layout is that of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn fields(list: &[(&str, &str)]) -> Fields {
    let mut fields = Fields::new();
    fields.extend(list.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    fields
}

/// Moves the output of `from` to `to`. `to` answers each request with the fields of `reply` and
/// with the body of the request.
fn exchange(from: &mut Connection, to: &mut Connection, reply: &Fields, now: Instant) {
    let mut start = 0;
    loop {
        let rest = &from.output()[start..];
        let step = to.receive(rest, now).unwrap();
        match step.event {
            None => break,
            Some(Event::Head { stream, head, .. }) => {
                if head.status == 0 {
                    to.send_reply(stream, 200, reply, false).unwrap();
                }
                to.recycle(head);
            }
            Some(Event::Data { stream, data, end }) => {
                let len = data.len();
                // The body of a reply is as long as that of its request.
                let _ = to.send_data(stream, &rest[data], end, now);
                to.consume(stream, len, now);
            }
            Some(_) => {}
        }
        start += step.consumed;
    }
    let len = from.output().len();
    from.wrote(len);
}

#[test]
fn a_warm_connection_allocates_nothing() {
    let now = Instant::now();
    let mut server = Connection::server(Config::default());
    let mut client = Connection::client(Config::default());
    let request = fields(&[("user-agent", "a browser"), ("Accept", "*/*"), ("cookie", "a=1; b=2")]);
    let reply = fields(&[("content-type", "text/html"), ("Server", "Forebay")]);
    let body = [b'x'; 1_000];
    let mut path = String::from("/0000");
    let mut round = |number: usize| {
        path.replace_range(1.., ["1111", "2222", "3333", "4444"][number % 4]);
        for _ in 0..32 {
            let pseudo = RequestPseudo {
                method: b"POST",
                scheme: b"https",
                authority: b"example.org",
                path: path.as_bytes(),
                protocol: b"",
            };
            let stream = client.send_request(&pseudo, &request, false).unwrap();
            assert_eq!(client.send_data(stream, &body, true, now), Ok(1_000));
        }
        exchange(&mut client, &mut server, &reply, now);
        exchange(&mut server, &mut client, &reply, now);
        assert_eq!((client.streams(), server.streams()), (0, 0));
    };
    // The first rounds let the buffers grow to their final sizes.
    (0..100).for_each(&mut round);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..200).for_each(&mut round);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
