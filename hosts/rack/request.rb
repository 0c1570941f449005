# The connections of rack.rb and the requests on them.
module Forebay
  class Connection
    HEAD = 12
    CHUNK = 65_536
    # Most requests are shorter.
    FIRST_CHUNK = 16_384
    LARGEST_IN_MEMORY = 1 << 20
    GONE = [EOFError, IOError, SystemCallError].freeze
    EMPTY = ''.b.freeze

    attr_reader :socket, :lock

    def initialize(host, crew, socket)
      @host, @crew, @socket = host, crew, socket
      @lock = Mutex.new    # for writes
      @buffer = String.new(capacity: FIRST_CHUNK)
      @is_taken = false
    end

    # Lets IO.select wait for connections.
    def to_io
      @socket
    end

    # Reads the start of a request, without waiting. Returns :request, :end or nil.
    def receive
      case @socket.read_nonblock(FIRST_CHUNK, @buffer, exception: false)
      when String then :request
      when nil then :end
      end
    rescue *GONE
      :end    # Forebay has closed the connection
    end

    # Runs the application for the request whose start was received. Returns true if the connection
    # can carry another request. Otherwise closes it, unless the application has taken it.
    def answer
      is_kept = false
      env = environment or return false
      reply = Reply.new(self, env)
      run_application(env, reply)
      is_kept = reply.keeps_connection? && !@is_taken
    rescue *GONE
      false    # Forebay has closed the connection
    ensure
      @input&.close
      @input = nil
      close unless is_kept || @is_taken
    end

    def close
      @crew.forget(self)
      @socket.close
    end

    # Closes the socket in a child of the application.
    def leave
      @socket.close unless @is_taken
    end

    def taken?
      @is_taken
    end

    # Gives the socket to the application, which then owns the connection.
    def take
      @is_taken = true
      @crew.forget(self)
      @socket
    end

    private

    def run_application(env, reply)
      is_over = false
      response = call(env)
      reply.deliver(*response) unless @is_taken
      is_over = true
    rescue *GONE => error
      is_over = true
      raise if reply.lost?
      reply.abandon(error)
    rescue Exception => error    # also SystemExit: other threads have requests in this process
      is_over = true
      reply.abandon(error)
    ensure
      reply.abandon('the application has ended its thread') unless is_over
      reply.finish
    end

    def call(env)
      @host.app.call(env)
    rescue SignalException => e
      raise unless @host.child?
      @host.end_by(e.signo)
    ensure
      exit!(0) if @host.child?    # a child that the application has forked and not ended
    end

    # Returns the environment that the specification of Rack requires; nil at the end.
    def environment
      env = @host.environments.known(@buffer)
      if env
        env['rack.input'] = StringIO.new(EMPTY)
      else
        env = receive_rest or return nil
      end
      env['rack.errors'] = $stderr
      env
    end

    # Receives the rest of a request, and parses it.
    def receive_rest
      return nil unless fill(HEAD)
      length, high, low = @buffer.unpack('NNN')
      size = (high << 32) + low
      return nil unless fill(HEAD + length)
      block = @buffer.byteslice(HEAD, length)
      env = @host.environments.parse(block, size.zero? ? @buffer : nil)
      rest = @buffer.byteslice(HEAD + length, @buffer.bytesize)
      unless size.zero?
        @buffer = rest
        input = receive_body(size)
        rest = @buffer
      end
      raise IOError, 'bytes follow the request' unless rest.empty?
      env['rack.input'] = input || StringIO.new(EMPTY)
      env
    end

    # Reads until the buffer has `wanted` bytes. Returns false at the end.
    def fill(wanted)
      while @buffer.bytesize < wanted
        part = @socket.recv(CHUNK)
        return false if part.nil? || part.empty?
        @buffer << part
      end
      true
    end

    # Returns the whole body: in memory, or in an unnamed file if it is large.
    def receive_body(length)
      if length <= LARGEST_IN_MEMORY
        fill(length) or raise EOFError
        body = @buffer.byteslice(0, length)
        @buffer = @buffer.byteslice(length, @buffer.bytesize)
        return StringIO.new(body)
      end
      @input = Tempfile.create('forebay', binmode: true)
      File.unlink(@input.path)
      while length.positive?
        fill(1) or raise EOFError
        length -= @input.write(@buffer)
        @buffer = String.new
      end
      @input.rewind
      @input
    rescue SystemCallError => error
      Forebay.log("cannot store the request body: #{error.message}")
      raise
    end
  end
end
