//! The codec of the generated service.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// First size of the two buffers of a call, in bytes. They grow with longer messages; most have a few hundred bytes.
const BUFFER: usize = 512;
/// Encoded bytes from which a part is sent before the rest is encoded: the default of tonic.
const YIELD_THRESHOLD: usize = 32 * 1024;

/// Messages in the form of prost, with small buffers. Each of tonic's default, 8 KiB, is more than the server reserves for
/// a call, and a client that does not send or read on keeps it.
#[derive(Clone, Debug)]
pub struct MessageCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for MessageCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for MessageCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD_THRESHOLD))
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD_THRESHOLD))
    }
}
