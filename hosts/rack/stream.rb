# The stream of a streaming body, for rack.rb.
module Forebay
  class Stream
    def initialize(reply, input)
      @reply, @input = reply, input
      @lock = Mutex.new
      @is_closed = @is_left = false
    end

    def write(*parts)
      raise IOError, 'the stream is closed' if @is_closed
      parts.sum do |part|
        text = part.to_s.b
        @reply.write_chunk(text)
        text.bytesize
      end
    end

    def <<(part)
      write(part)
      self
    end

    def write_nonblock(part, **)
      write(part)
    end

    def read(...)
      @input&.read(...)
    end

    def readpartial(...)
      @input ? @input.readpartial(...) : raise(EOFError)
    end

    def read_nonblock(length, buffer = nil, **)
      @input&.read(length, buffer)
    end

    def flush
      self
    end

    def close_read
      @input = nil
    end

    def close_write
      close
    end

    def close(_error = nil)
      @lock.synchronize do
        return if @is_closed
        @is_closed = true
        @reply.end_stream(@is_left)
      end
    end

    def closed?
      @is_closed
    end

    # Called when the body has returned. Returns true if the stream is closed. Otherwise the
    # connection belongs to the stream from now on.
    def leave
      @lock.synchronize do
        @is_left = !@is_closed
        @is_closed
      end
    end
  end
end
