//! A way to the server that holds up some of the connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Passes everything on both ways, but holds a connection whose client sends a certain text, such as
/// an application name at sign-in, until it is released.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    /// Connections held so far, and whether none is held any more.
    state: Mutex<(usize, bool)>,
    released: Condvar,
}

impl Proxy {
    /// Listens on a port of its own; ends with the process.
    pub(crate) fn start(server: u16, held: &'static [u8]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Arc::<Gate>::default();
        let of_connections = Arc::clone(&gate);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let gate = Arc::clone(&of_connections);
                let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || {
                    pass(client, server, |bytes| {
                        if bytes.windows(held.len()).any(|window| window == held) {
                            gate.wait();
                        }
                    });
                });
                thread::spawn(move || pass(back, forth, |_| ()));
            }
        });
        Self { port, gate }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How many connections have been held up.
    pub(crate) fn held(&self) -> usize {
        self.gate.state.lock().unwrap().0
    }

    /// Lets them go, and holds none from here on.
    pub(crate) fn release(&self) {
        self.gate.state.lock().unwrap().1 = true;
        self.gate.released.notify_all();
    }
}

impl Gate {
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += usize::from(!state.1);
        drop(self.released.wait_while(state, |(_, released)| !*released).unwrap());
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, look: impl Fn(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        look(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other side may be gone already.
    drop(to.shutdown(Shutdown::Write));
}
