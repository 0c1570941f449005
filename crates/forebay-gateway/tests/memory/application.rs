//! A backend that answers with a function.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::world::{Message, World};

/// The backend of a test, and the requests that it got.
pub struct Application {
    /// The requests since the last call of [`Self::asked`].
    pub seen: Rc<RefCell<Vec<Message>>>,
}

impl Application {
    /// Answers each request with the text of `answer`, which gets the request and its number,
    /// counted from 1. An empty text closes the connection.
    pub fn start(world: &World, answer: impl Fn(&Message, usize) -> String + 'static) -> Self {
        Self::slow(world, Duration::ZERO, answer)
    }

    /// Like [`Self::start`], but answers each request after `time`.
    pub fn slow(
        world: &World,
        time: Duration,
        answer: impl Fn(&Message, usize) -> String + 'static,
    ) -> Self {
        Self::at(world, "10.0.0.1:3000", time, answer)
    }

    /// Like [`Self::slow`], for a backend at this address.
    pub fn at(
        world: &World,
        address: &str,
        time: Duration,
        answer: impl Fn(&Message, usize) -> String + 'static,
    ) -> Self {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let mut backend = world.backend(address);
        let (requests, answer) = (seen.clone(), Rc::new(answer));
        spawn_local(async move {
            loop {
                let mut connection = backend.accept().await;
                let (requests, answer) = (requests.clone(), answer.clone());
                spawn_local(async move {
                    while let Ok(mut request) = connection.head().await {
                        let length = request.field("content-length").unwrap_or("0").parse();
                        request.body = connection.exactly(length.unwrap()).await.unwrap();
                        let number = requests.borrow().len() + 1;
                        let reply = answer(&request, number);
                        requests.borrow_mut().push(request);
                        sleep(time).await;
                        if reply.is_empty() {
                            return;
                        }
                        connection.send(reply).await;
                    }
                });
            }
        });
        Self { seen }
    }

    /// Returns the number of requests since the last call.
    pub fn asked(&self) -> usize {
        self.seen.borrow_mut().drain(..).count()
    }
}

/// Returns a reply with these field lines.
pub fn reply(fields: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{fields}\r\n{body}")
}
