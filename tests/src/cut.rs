//! A wire that breaks: forwards connections to a port of this machine, and cuts the first ones after
//! so many bytes of what comes back, or lets them stand still there.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
};

/// A wire. Its threads end with the process.
#[derive(Clone, Debug)]
pub struct Wire {
    port: u16,
    connections: Arc<Mutex<Vec<u64>>>,
    hold: Arc<Hold>,
}

/// Where connections stand still, until they are released.
#[derive(Debug, Default)]
struct Hold {
    after: Mutex<Option<u64>>,
    released: Condvar,
}

impl Hold {
    /// Goes on when a connection may have more than so many bytes.
    fn pass(&self, bytes: u64) {
        let after = self.after.lock().unwrap_or_else(PoisonError::into_inner);
        let stands = |after: &mut Option<u64>| after.is_some_and(|after| bytes >= after);
        drop(self.released.wait_while(after, stands).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Wire {
    /// A wire to a port; the first connection is cut after so many bytes, the next after the next number, and so on.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn to(target: u16, cuts: &'static [u64]) -> Self {
        Self::with(target, cuts, None)
    }

    /// A wire on which connections stand still after so many bytes, until they are released.
    ///
    /// # Panics
    /// When it can't listen.
    #[must_use]
    pub fn holding(target: u16, after: u64) -> Self {
        Self::with(target, &[], Some(after))
    }

    /// Lets what stands still go on, and whatever comes after.
    pub fn release(&self) {
        *self.hold.after.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.hold.released.notify_all();
    }

    fn with(target: u16, cuts: &'static [u64], hold_after: Option<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let hold = Hold { after: Mutex::new(hold_after), ..Hold::default() };
        let wire = Self { port, connections: Arc::default(), hold: Arc::new(hold) };
        let own = wire.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let number = {
                    let mut connections = own.connections.lock().unwrap_or_else(PoisonError::into_inner);
                    connections.push(0);
                    connections.len() - 1
                };
                let limit = cuts.get(number).copied().unwrap_or(u64::MAX);
                let (Ok(near_in), Ok(far_out)) = (near.try_clone(), far.try_clone()) else { continue };
                thread::spawn(move || forward(near_in, far_out, |_| true));
                let own = own.clone();
                thread::spawn(move || {
                    let count = |bytes: u64| {
                        let sum = {
                            let mut connections = own.connections.lock().unwrap_or_else(PoisonError::into_inner);
                            connections[number] += bytes;
                            connections[number]
                        };
                        own.hold.pass(sum);
                        sum < limit
                    };
                    forward(far, near, count);
                });
            }
        });
        wire
    }

    /// Where it begins.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The bytes that came back on each connection.
    #[must_use]
    pub fn bytes(&self) -> Vec<u64> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Copies until one end closes or `goes_on` says no; then both are closed.
fn forward(mut from: TcpStream, mut to: TcpStream, goes_on: impl Fn(u64) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).is_err() || !goes_on(count as u64) {
            break;
        }
    }
    // Either may be closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
