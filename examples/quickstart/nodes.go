package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood"
)

// A process is one node in a process of its own.
type process struct {
	id     int32
	dir    string
	store  string
	s3     string // URL of a bucket, or ""
	listen string

	mu      sync.Mutex
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
	errs    *tail
	peak    int64 // largest memory of its lives
}

// start starts the process and opens its node.
func (p *process) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, nodeCommand)
	p.errs = &tail{}
	cmd.Stderr = p.errs
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start node %d: %w", p.id, err)
	}
	p.mu.Lock()
	p.cmd, p.in, p.answers = cmd, in, bufio.NewReader(out)
	p.mu.Unlock()
	a, err := p.ask(ctx, nodeRequest{Op: "open", ID: p.id, Dir: p.dir, Store: p.store, S3: p.s3, Listen: p.listen, Seconds: 30})
	if err != nil {
		return err
	}
	p.listen = a.Addr
	return nil
}

// ask sends one request and returns its answer.
func (p *process) ask(ctx context.Context, q nodeRequest) (nodeAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nodeAnswer{}, fmt.Errorf("node %d is down", p.id)
	}
	q.ID = p.id
	b, err := json.Marshal(q)
	if err != nil {
		return nodeAnswer{}, err
	}
	stop := context.AfterFunc(ctx, func() { p.cmd.Process.Kill() }) // ends the read below
	defer stop()
	var a nodeAnswer
	_, err = p.in.Write(append(b, '\n'))
	if err == nil {
		var line []byte
		if line, err = p.answers.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &a)
		}
	}
	switch {
	case ctx.Err() != nil:
		return a, context.Cause(ctx)
	case err != nil:
		return a, fmt.Errorf("node %d ended: %w%s", p.id, err, p.errs)
	case a.Kind == "in-use":
		return a, fmt.Errorf("directory %s is in use by another run", p.dir)
	case a.Error != "":
		return a, fmt.Errorf("node %d: %s", p.id, strings.TrimPrefix(a.Error, "cordwood: "))
	}
	return a, nil
}

// kill ends the process with SIGKILL and waits until it is gone.
func (p *process) kill() error {
	cmd := p.cmd
	err := cmd.Process.Kill()
	p.reap()
	return err
}

// reap waits for the process and notes its largest memory.
func (p *process) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	p.in.Close()
	p.cmd.Wait() // its exit status after a kill says nothing
	p.peak = max(p.peak, peakRSS(p.cmd.ProcessState))
	p.cmd = nil
}

// stop ends the process in order; after a while, by force.
func (p *process) stop() {
	p.mu.Lock()
	cmd, in := p.cmd, p.in
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	in.Close()
	timer := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	p.reap()
}

// A tail keeps the end of what a process wrote to standard error: a panic, if
// anything.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 16 << 10

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > tailBytes {
		t.b = t.b[len(t.b)-tailBytes:]
	}
	return len(p), nil
}

// String returns what was kept, on a line of its own.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := bytes.TrimSpace(t.b); len(b) > 0 {
		return "\n" + string(b)
	}
	return ""
}

// A fleet is three node processes that are one cluster.
type fleet struct {
	processes [3]*process
}

// clusterFile keeps the nodes' addresses over runs: voters are known by them.
type clusterFile struct {
	Cluster string   `json:"cluster"`
	Listen  []string `json:"listen"`
}

// startFleet starts the three nodes below dir, as a new cluster if there is none. s3
// is the URL of a bucket, or "".
func startFleet(ctx context.Context, dir, s3 string) (*fleet, error) {
	f := &fleet{}
	name := filepath.Join(dir, "cluster.json")
	var known clusterFile
	b, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(b, &known)
		if err == nil && len(known.Listen) != len(f.processes) {
			err = errors.New("it does not name three nodes")
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	for i := range f.processes {
		p := &process{id: int32(i + 1), dir: filepath.Join(dir, fmt.Sprintf("node%d", i+1)), store: filepath.Join(dir, "store"), s3: s3, listen: anyPort}
		if known.Cluster != "" {
			p.listen = known.Listen[i]
		}
		f.processes[i] = p
		if err := p.start(ctx); err != nil {
			f.stop()
			return nil, err
		}
	}
	if err := f.found(ctx, name, known); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// found makes the nodes one cluster. Where they are one already it does nothing,
// so that a run that was cut here is taken up again.
func (f *fleet) found(ctx context.Context, name string, known clusterFile) error {
	if known.Cluster == "" {
		known = clusterFile{Cluster: cordwood.NewID().String(), Listen: f.addrs()}
		b, err := json.Marshal(known)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	var voters []cordwood.Voter
	for _, p := range f.processes {
		voters = append(voters, cordwood.Voter{ID: p.id, Addr: p.listen})
	}
	if _, err := f.processes[0].ask(ctx, nodeRequest{Op: "init", Cluster: known.Cluster, Voters: voters, Seconds: 30}); err != nil {
		return err
	}
	var joined sync.WaitGroup
	errs := make([]error, len(f.processes))
	for i, p := range f.processes[1:] {
		joined.Go(func() {
			_, errs[i] = p.ask(ctx, nodeRequest{Op: "join", Seeds: f.addrs(), Seconds: 30})
		})
	}
	joined.Wait()
	return errors.Join(errs...)
}

func (f *fleet) addrs() (addrs []string) {
	for _, p := range f.processes {
		addrs = append(addrs, p.listen)
	}
	return addrs
}

// byID returns the process of a node.
func (f *fleet) byID(id int32) *process {
	for _, p := range f.processes {
		if p.id == id {
			return p
		}
	}
	return nil
}

func (f *fleet) stop() {
	var stopped sync.WaitGroup
	for _, p := range f.processes {
		if p != nil {
			stopped.Go(p.stop)
		}
	}
	stopped.Wait()
}

// peak returns the largest memory of the processes, summed. They must be stopped.
func (f *fleet) peak() (sum int64) {
	for _, p := range f.processes {
		sum += p.peak
	}
	return sum
}
