package balance_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/balance"
)

var rhos = []float64{0.10, 0.30, 0.50, 0.70, 0.80, 0.90, 0.95, 0.99}

// TestQueueTable holds the formulas against the waits of the reference, in units of the service time.
func TestQueueTable(t *testing.T) {
	erlang := func(k float64, rho float64) float64 {
		return balance.RenewalWait(func(s float64) float64 { return math.Pow(k*rho/(k*rho+s), k) })
	}
	hyper := func(rho float64) float64 {
		const cv2 = 4
		p := (1 + math.Sqrt((cv2-1.0)/(cv2+1.0))) / 2
		return balance.RenewalWait(func(s float64) float64 {
			return p*2*p*rho/(2*p*rho+s) + (1-p)*2*(1-p)*rho/(2*(1-p)*rho+s)
		})
	}
	for _, column := range []struct {
		name      string
		wait      func(rho float64) float64
		want      []float64
		tolerance float64
	}{
		{"M/M/1", func(r float64) float64 { return balance.Kingman(r, 1, 1) }, []float64{0.111111, 0.428571, 1, 2.333333, 4, 9, 19, 99}, 1e-6},
		{"M/D/1", func(r float64) float64 { return balance.Kingman(r, 1, 0) }, []float64{0.055556, 0.214286, 0.5, 1.166667, 2, 4.5, 9.5, 49.5}, 1e-6},
		{"M/E2/1", func(r float64) float64 { return balance.Kingman(r, 1, 0.5) }, []float64{0.083333, 0.321429, 0.75, 1.75, 3, 6.75, 14.25, 74.25}, 1e-6},
		{"M/H2/1", func(r float64) float64 { return balance.Kingman(r, 1, 4) }, []float64{0.277778, 1.071429, 2.5, 5.833333, 10, 22.5, 47.5, 247.5}, 1e-6},
		{"D/M/1 exact", func(r float64) float64 {
			return balance.RenewalWait(func(s float64) float64 { return math.Exp(-s / r) })
		},
			[]float64{0.000045, 0.042625, 0.255001, 0.876160, 1.692731, 4.178659, 9.172434, 49.167786}, 1e-4},
		{"D/M/1 Kingman", func(r float64) float64 { return balance.Kingman(r, 0, 1) }, []float64{0.055556, 0.214286, 0.5, 1.166667, 2, 4.5, 9.5, 49.5}, 1e-6},
		{"D/M/1 KLB", func(r float64) float64 { return balance.KraemerLangenbachBelz(r, 0, 1) },
			[]float64{0.000138, 0.045230, 0.256709, 0.876724, 1.692963, 4.178713, 9.172447, 49.167786}, 1e-4},
		{"E2/M/1 exact", func(r float64) float64 { return erlang(2, r) },
			[]float64{0.030057, 0.216612, 0.618034, 1.600623, 2.843980, 6.588284, 14.085725, 74.083799}, 1e-4},
		{"E2/M/1 Kingman", func(r float64) float64 { return balance.Kingman(r, 0.5, 1) }, []float64{0.083333, 0.321429, 0.75, 1.75, 3, 6.75, 14.25, 74.25}, 1e-6},
		{"E2/M/1 KLB", func(r float64) float64 { return balance.KraemerLangenbachBelz(r, 0.5, 1) },
			[]float64{0.030657, 0.248022, 0.671129, 1.668620, 2.917813, 6.667179, 14.166910, 74.166713}, 1e-4},
		{"H2/M/1 exact", hyper, []float64{0.186635, 0.811147, 2.162278, 5.573052, 9.819193, 22.408858, 47.454624, 247.490983}, 1e-4},
		{"H2/M/1 Kingman", func(r float64) float64 { return balance.Kingman(r, 4, 1) }, []float64{0.277778, 1.071429, 2.5, 5.833333, 10, 22.5, 47.5, 247.5}, 1e-6},
		{"H2/M/1 KLB", func(r float64) float64 { return balance.KraemerLangenbachBelz(r, 4, 1) },
			[]float64{0.198209, 0.824064, 2.072573, 5.212651, 9.277435, 21.671874, 46.617673, 246.573613}, 1e-4},
	} {
		for i, rho := range rhos {
			near(t, column.name, column.wait(rho), column.want[i], max(column.tolerance, column.want[i]*1e-6))
		}
	}
	for _, test := range []struct {
		c                  int
		rho                float64
		p, exact, sakaWait float64
	}{
		{2, .5, .333333, .333333, .366151}, {4, .8, .596430, .745541, .771549}, {8, .5, .059044, .014761, .026412},
		{8, .8, .457640, .286028, .303135}, {8, .9, .701530, .876916, .888249}, {16, .9, .591340, .369590, .375688},
	} {
		w, p := balance.ErlangC(test.c, test.rho)
		near(t, "M/M/c wait", w, test.exact, 1e-6)
		near(t, "M/M/c probability", p, test.p, 5e-6) // the reference gives five digits
		near(t, "Sakasegawa", balance.Sakasegawa(test.c, test.rho, 1, 1), test.sakaWait, 1e-6)
	}
}

// TestQueueBounds: the exact waits never exceed Daley's bound, and nothing is NaN anywhere.
func TestQueueBounds(t *testing.T) {
	for _, rho := range rhos {
		for _, q := range []struct{ ca2, cs2, wait float64 }{
			{1, 1, balance.Kingman(rho, 1, 1)}, {1, 0, balance.Kingman(rho, 1, 0)}, {1, 4, balance.Kingman(rho, 1, 4)},
			{0, 1, balance.RenewalWait(func(s float64) float64 { return math.Exp(-s / rho) })},
			{0.5, 1, balance.RenewalWait(func(s float64) float64 { return math.Pow(2*rho/(2*rho+s), 2) })},
		} {
			if bound := balance.DaleyBound(rho, q.ca2, q.cs2); q.wait > bound {
				t.Errorf("rho %v, ca2 %v, cs2 %v: wait %v above the bound %v", rho, q.ca2, q.cs2, q.wait, bound)
			}
		}
	}
	for _, rho := range []float64{-1, 0, 1, 2, math.NaN(), math.Inf(1)} {
		for name, w := range map[string]float64{
			"Kingman": balance.Kingman(rho, 1, 1), "KLB": balance.KraemerLangenbachBelz(rho, 0, 1), "Sakasegawa": balance.Sakasegawa(8, rho, 1, 1),
			"Daley": balance.DaleyBound(rho, 1, 1),
		} {
			if math.IsNaN(w) || rho >= 1 && !math.IsInf(w, 1) || w < 0 {
				t.Errorf("%s at %v: %v", name, rho, w)
			}
		}
	}
	if w := balance.RenewalWait(func(s float64) float64 { return math.Exp(-s / 1.5) }); !math.IsInf(w, 1) && w < 1e6 {
		t.Errorf("unstable queue: wait %v", w)
	}
}

func TestModelRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rho := rapid.Float64Range(0.001, 0.999).Draw(t, "rho")
		b := rapid.Float64Range(0.3, 6).Draw(t, "exponent")
		// Waits are whole nanoseconds: with a scale of hours the rounding does not matter.
		m := balance.Model{Scale: 1000 * time.Hour, Exponent: b}
		if w := m.Wait(rho); w > 1e9 && math.Abs(m.Utilization(w)-rho) > 1e-8 {
			t.Errorf("rho %v, b %v: got %v", rho, b, m.Utilization(w))
		}
		w1 := time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "w1"))
		w2 := w1 + time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "more"))
		if r1, r2 := m.Utilization(w1), m.Utilization(w2); r2 < r1 || r1 < 0 || r2 >= 1 {
			t.Errorf("waits %v and %v: utilisations %v and %v", w1, w2, r1, r2)
		}
	})
	m := balance.Model{Scale: time.Millisecond}
	for w, want := range map[time.Duration]float64{time.Millisecond: .5, 4 * time.Millisecond: .8, 9 * time.Millisecond: .9, 19 * time.Millisecond: .95, 99 * time.Millisecond: .99} {
		near(t, w.String(), m.Utilization(w), want, 1e-12)
	}
	if m.Wait(1) != math.MaxInt64 || m.Wait(1-1e-16) != math.MaxInt64 || (balance.Model{}).Utilization(time.Second) != 0 || m.Utilization(-1) != 0 {
		t.Error("out of range")
	}
}

// TestModelSensitivity: a scale wrong by two costs what the identity of the reference says.
func TestModelSensitivity(t *testing.T) {
	right := balance.Model{Scale: time.Hour}
	for rho, want := range map[float64][2]float64{.3: {.177, .462}, .5: {.333, .667}, .8: {.667, .889}, .9: {.818, .947}} {
		w := right.Wait(rho)
		near(t, "scale doubled", balance.Model{Scale: 2 * time.Hour}.Utilization(w), want[0], 1e-3)
		near(t, "scale halved", balance.Model{Scale: time.Hour / 2}.Utilization(w), want[1], 1e-3)
	}
}

// TestModelManyServers: the exact waits of M/M/8 through the three inverses of the reference.
func TestModelManyServers(t *testing.T) {
	const tau = 1e12 // one service, in nanoseconds, so that rounding does not matter
	w80, _ := balance.ErlangC(8, .8)
	fitted := balance.Model{Scale: time.Duration(w80 * tau * .2 / .8)}
	for rho, want := range map[float64][3]float64{
		.30: {.005, .009, .184}, .50: {.106, .171, .434}, .60: {.259, .379, .561}, .70: {.474, .612, .681},
		.80: {.696, .800, .794}, .90: {.875, .925, .899}, .95: {.944, .967, .950}, .99: {.990, .994, .990},
	} {
		w, _ := balance.ErlangC(8, rho)
		wait := time.Duration(w * tau)
		near(t, "plain", balance.Model{Scale: tau / 8}.Utilization(wait), want[0], 6e-4)
		near(t, "fitted at .8", fitted.Utilization(wait), want[1], 6e-4)
		near(t, "Sakasegawa", balance.Model{Scale: tau / 8, Exponent: balance.SakasegawaExponent(8)}.Utilization(wait), want[2], 6e-4)
	}
}

func TestCalibrate(t *testing.T) {
	truth := balance.Model{Scale: 250 * time.Microsecond, Exponent: 2.5}
	var points []balance.CalibrationPoint
	for _, rho := range []float64{.6, .7, .8, .9, .95} {
		points = append(points, balance.CalibrationPoint{Utilization: rho, Wait: truth.Wait(rho)})
	}
	m, err := balance.Calibrate(points, 8)
	if err != nil || math.Abs(m.Exponent-2.5) > 1e-2 || math.Abs(float64(m.Scale-truth.Scale)) > 1000 {
		t.Errorf("got %+v, %v, want %+v", m, err, truth)
	}
	// One utilisation leaves the exponent open.
	m, err = balance.Calibrate(points[2:3], 8)
	if err != nil || m.Exponent != balance.SakasegawaExponent(8) || math.Abs(m.Utilization(points[2].Wait)-.8) > 1e-4 {
		t.Errorf("got %+v, %v", m, err)
	}
	// Fitted to the exact waits of eight servers, the model is within a point from .5 on.
	points = nil
	for _, rho := range []float64{.5, .6, .7, .8, .9, .95} {
		w, _ := balance.ErlangC(8, rho)
		points = append(points, balance.CalibrationPoint{Utilization: rho, Wait: time.Duration(w * 1e9)})
	}
	if m, err = balance.Calibrate(points, 8); err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		near(t, "M/M/8 fitted", m.Utilization(p.Wait), p.Utilization, 0.01)
	}
	for name, bad := range map[string][]balance.CalibrationPoint{
		"none":      nil,
		"rho":       {{Utilization: 1, Wait: 1}},
		"wait":      {{Utilization: .5}},
		"shrinking": {{Utilization: .5, Wait: time.Second}, {Utilization: .9, Wait: time.Microsecond}},
	} {
		if _, err := balance.Calibrate(bad, 1); !errors.Is(err, balance.ErrCalibration) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
