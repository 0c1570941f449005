# The connections of rack.rb and the requests on them.
module Forebay
  class Connection
    HEAD = 12
    CHUNK = 65_536
    LARGEST_IN_MEMORY = 1 << 20
    GONE = [EOFError, IOError, SystemCallError].freeze

    attr_reader :socket, :host

    def initialize(host, socket)
      @host, @socket = host, socket
      @buffer, @part = String.new, String.new
      @is_busy = @is_taken = false
      @pid = Process.pid
    end

    # Answers requests until the connection or the process ends.
    def run
      while !@host.stopping? && (env = receive)
        break unless answer(env)
      end
    rescue *GONE
      nil    # Forebay has closed the connection
    ensure
      @host.forget(self)
      @socket.close unless @is_taken
    end

    # Closes the connection if it is idle. Otherwise the connection closes after its request.
    def stop
      @socket.shutdown unless @is_busy
    rescue *GONE
      nil
    end

    def leave
      @socket.close unless @is_taken
    end

    def taken?
      @is_taken
    end

    # Gives the socket to the application, which then owns the connection.
    def take
      @is_taken = true
      @socket
    end

    private

    # Runs the application for one request. Returns true if the connection can carry another
    # request.
    def answer(env)
      reply = Reply.new(self, env)
      @host.take_turn { run_application(env, reply) }
      reply.keeps_connection? && !@is_taken
    ensure
      @is_busy = false
      @input&.close
      @input = nil
    end

    def run_application(env, reply)
      response = call(env)
      reply.deliver(*response) unless @is_taken
    rescue *GONE => error
      raise if reply.lost?
      reply.abandon(error)
    rescue Exception => error    # also SystemExit: other threads have requests in this process
      reply.abandon(error)
    ensure
      reply.finish
    end

    def call(env)
      @host.app.call(env)
    ensure
      exit!(0) if Process.pid != @pid    # a child that the application has forked and not ended
    end

    # Returns the environment of the next request; nil at the end.
    def receive
      return nil unless fill(HEAD)
      @is_busy = true
      length, high, low = @buffer.unpack('NNN')
      return nil unless fill(HEAD + length)
      block = @buffer.byteslice(HEAD, length)
      @buffer = @buffer.byteslice(HEAD + length, @buffer.bytesize)
      environment(block, receive_body((high << 32) + low))
    end

    # Reads until the buffer has `wanted` bytes. Returns false at the end.
    def fill(wanted)
      while @buffer.bytesize < wanted
        part = @socket.recv(CHUNK, 0, @part)
        return false if part.nil? || part.empty?
        @buffer << part
      end
      true
    end

    # Returns the whole body: in memory, or in an unnamed file if it is large.
    def receive_body(length)
      return StringIO.new(String.new) if length.zero?
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

    # Returns the environment that the specification of Rack requires.
    def environment(block, input)
      fields = block.split("\0", -1)
      fields.pop
      env = Hash[*fields]
      env['rack.url_scheme'] = env['REQUEST_SCHEME']
      env['rack.input'] = input
      env['rack.errors'] = $stderr
      env['rack.version'] = [1, 6]
      env['rack.multithread'] = @host.is_threaded
      env['rack.multiprocess'] = true
      env['rack.run_once'] = false
      env['rack.hijack?'] = true
      env
    end
  end
end
