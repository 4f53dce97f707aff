/* page_chart.js - number formats, colours, and everything drawn on a canvas. */

/* ---- numbers ---- */

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
const TIME_UNITS = [['ns', 1], ['\u00b5s', 1e3], ['ms', 1e6], ['s', 1e9]];

function byteUnit(bytes) {
	let unit = 0;
	while (unit + 1 < BYTE_UNITS.length && Math.abs(bytes) >= 1024 ** (unit + 1)) unit++;
	return unit;
}

function digits(value, decimals) {
	return value.toLocaleString('en-US', { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function formatBytes(bytes) {
	const unit = byteUnit(bytes);
	return unit ? digits(bytes / 1024 ** unit, 1) + ' ' + BYTE_UNITS[unit] : digits(bytes, 0) + ' B';
}

function formatCount(value) { return digits(value, 0); }

function formatTime(ns) {
	if (!isFinite(ns)) return 'to the end';
	let unit = 0;
	while (unit + 1 < TIME_UNITS.length && Math.abs(ns) >= TIME_UNITS[unit + 1][1]) unit++;
	const value = ns / TIME_UNITS[unit][1];
	return digits(value, unit === 0 ? 0 : Math.abs(value) < 10 ? 3 : Math.abs(value) < 100 ? 2 : 1) + ' ' + TIME_UNITS[unit][0];
}

function formatPart(part) { return digits(100 * part, part > 0 && part < 0.001 ? 2 : 1) + '%'; }

/* About [count] ticks in steps of 1, 2 or 5 times a power of ten, in a unit that suits the step. */
function timeTicks(t0, t1, count) {
	const rough = (t1 - t0) / count, power = 10 ** Math.floor(Math.log10(rough));
	const step = power * ([1, 2, 5, 10].find(factor => factor * power >= rough) || 10);
	let unit = 0;
	while (unit + 1 < TIME_UNITS.length && (step >= TIME_UNITS[unit + 1][1] || (t1 >= TIME_UNITS[unit + 1][1] && step * 1000 >= TIME_UNITS[unit + 1][1]))) unit++;
	const [name, size] = TIME_UNITS[unit], decimals = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)), ticks = [];
	for (let i = Math.ceil(t0 / step); i * step <= t1 && ticks.length < 100; i++) ticks.push({ at: i * step, text: digits(i * step / size, decimals) + ' ' + name });
	return ticks;
}

/* Ticks in steps of powers of two, which are round in KiB and MiB. */
function byteTicks(most, count) {
	const step = 2 ** Math.ceil(Math.log2(Math.max(1, most / count))), unit = byteUnit(Math.max(step, most / 8)), ticks = [];
	const decimals = step < 1024 ** unit ? (step * 2 < 1024 ** unit ? 2 : 1) : 0;
	for (let at = 0; at <= most; at += step) ticks.push({ at, text: at ? digits(at / 1024 ** unit, decimals) + ' ' + BYTE_UNITS[unit] : '0' });
	return ticks;
}

/* ---- colours ---- */

const colours = {};

function readColours() {
	const style = getComputedStyle(document.documentElement), get = name => style.getPropertyValue('--' + name).trim();
	for (const name of ['ground', 'card', 'line', 'grid', 'text', 'quiet', 'faint', 'accent', 'peak', 'out', 'in', 'hole', 'others']) colours[name] = get(name);
	colours.groups = Array.from({ length: COLOURS }, (_, i) => get('g' + i));
}

function groupColour(model, group) { const { colour } = model.groups[group]; return colour === NOTHING ? colours.others : colours.groups[colour]; }

function channels(hex) { return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16)); }

function mix(a, b, part) { return a.map((value, i) => Math.round(value + (b[i] - value) * part)); }

/* The colour as a pixel of an ImageData on a little-endian machine. */
function pixel(rgb) { return (255 << 24 | rgb[2] << 16 | rgb[1] << 8 | rgb[0]) >>> 0; }

/* For each group: three shades, so that neighbours are distinguishable, a border colour, and faded versions for what a search does not
 * match. */
function shades(model) {
	const card = channels(colours.card), text = channels(colours.text);
	return model.groups.map((_, group) => {
		const base = channels(groupColour(model, group));
		const set = [base, mix(base, card, 0.12), mix(base, card, 0.24)];
		return {
			fill: set.map(pixel), band: pixel(mix(base, card, 0.34)), edge: pixel(mix(base, card, 0.5)),
			faded: set.map((one, i) => pixel(mix(mix(one, card, 0.82), text, 0.02 * i))), fadedEdge: pixel(mix(base, card, 0.93)),
		};
	});
}

/* ---- canvases ---- */

/* Sizes a canvas to the device pixels that it covers; returns its context, scaled to CSS pixels. */
function prepare(canvas) {
	const scale = Math.min(2, window.devicePixelRatio || 1), { width, height } = canvas.getBoundingClientRect();
	const w = Math.max(1, Math.round(width * scale)), h = Math.max(1, Math.round(height * scale));
	if (canvas.width !== w || canvas.height !== h) canvas.width = w, canvas.height = h;
	const context = canvas.getContext('2d');
	context.setTransform(scale, 0, 0, scale, 0, 0);
	context.clearRect(0, 0, width, height);
	context.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
	return { context, width, height, scale, w, h };
}

/* Draws text cut to fit, or nothing if too little of it would be readable. */
function fitText(context, text, x, y, room) {
	if (room < 14) return;
	let shown = text;
	if (context.measureText(text).width > room) {
		const each = context.measureText('n').width, most = Math.floor(room / each) - 1;
		if (most < 2) return;
		shown = text.slice(0, most) + '\u2026';
	}
	context.fillText(shown, x, y);
}

/* Draws the chart. Each column of pixels shows the highest moment of its time interval. Allocations that are wide and high enough to
 * be visible are stacked by group and age; a paler band on top of each group is the sum of its smaller allocations. Returns the data
 * that hovering needs. */
function drawChart(canvas, model, view) {
	const { context, width, height, w, h } = prepare(canvas);
	const { bytes, site, begin, finish } = model.capture, size = model.groups.length;
	const moments = model.columns(view.t0, view.t1, w), used = new Float64Array(w);
	let most = 0;
	for (let c = 0; c < w; c++) most = Math.max(most, used[c] = model.inUse(moments[c]));
	const limits = model.limits.filter(({ from, to }) => from < view.t1 && to > view.t0);
	let top = Math.max(1, most * 1.12);
	for (const { limit } of limits) if (limit <= most * 1.6) top = Math.max(top, limit * 1.06);
	const scale = h / top, sums = new Float64Array(w * size);
	for (let c = 0; c < w; c++) {
		if (c && moments[c] === moments[c - 1]) sums.copyWithin(c * size, (c - 1) * size, c * size);
		else model.groupSums(moments[c], sums, c * size);
	}

	const seen = [], least = top / h * 0.8, shortest = (view.t1 - view.t0) / w * 0.8;
	model.spans.each(view.t0, view.t1, shortest, id => {
		if (bytes[id] >= least && Math.min(finish[id], view.t1) - Math.max(begin[id], view.t0) >= shortest) seen.push(id);
	});
	const group = id => model.groupOf[site[id]];
	seen.sort((a, b) => group(a) - group(b) || a - b);

	const image = context.createImageData(w, h), pixels = new Uint32Array(image.data.buffer), owner = new Int32Array(w * h).fill(NOTHING);
	const palette = shades(model), cursor = new Float64Array(w), ceiling = new Float64Array(w);
	const bar = (c, from, to, colour, edge, id) => {
		const y0 = h - Math.round(from * scale), y1 = Math.max(0, h - Math.round(to * scale));
		for (let y = y1, at = y1 * w + c; y < y0; y++, at += w) pixels[at] = colour, owner[at] = id;
		if (edge && y0 - y1 > 4) pixels[y1 * w + c] = edge;
	};
	const marked = view.matches;
	let next = 0;
	for (let g = 0; g < size; g++) {
		for (let c = 0; c < w; c++) ceiling[c] = cursor[c] + sums[c * size + g];
		for (; next < seen.length && group(seen[next]) === g; next++) {
			const id = seen[next], shade = palette[g], faded = marked && !marked[site[id]];
			const colour = faded ? shade.faded[id % 3] : shade.fill[id % 3], edge = faded ? shade.fadedEdge : shade.edge;
			const c0 = lowerBound(moments, model.first[id]), c1 = lowerBound(moments, model.last[id], c0);
			for (let c = c0; c < c1; c++) {
				const side = c1 - c0 > 3 && (c === c0 && c > 0) && bytes[id] * scale > 3;
				bar(c, cursor[c], cursor[c] + bytes[id], side ? edge : colour, edge, id);
				cursor[c] += bytes[id];
			}
		}
		/* The rest of the group: allocations too small to be drawn individually. */
		const band = marked && !groupMatches(model, g, marked) ? palette[g].faded[1] : palette[g].band;
		for (let c = 0; c < w; c++) {
			if (ceiling[c] > cursor[c]) bar(c, cursor[c], ceiling[c], band, 0, -2 - g);
			cursor[c] = ceiling[c];
		}
	}
	context.putImageData(image, 0, 0);
	drawGrid(context, model, view, width, height, top, limits);
	return { moments, owner, w, h, width, height, top, drawn: seen.length };
}

/* Highlights one allocation of the chart over its visible lifetime; NOTHING: none. */
function drawGlow(canvas, model, chart, id) {
	const { context, scale } = prepare(canvas);
	if (id < 0) return;
	context.setTransform(1, 0, 0, 1, 0, 0);
	context.fillStyle = colours.text;
	context.globalAlpha = 0.45;
	const c0 = lowerBound(chart.moments, model.first[id]), c1 = lowerBound(chart.moments, model.last[id], c0), { owner, w, h } = chart;
	for (let c = c0, hint = 0; c < c1; c++) {
		/* Its position changes little between columns, so search from the previous one. */
		let y = owner[hint * w + c] === id ? hint : 0;
		if (y === hint) while (y > 0 && owner[(y - 1) * w + c] === id) y--;
		while (y < h && owner[y * w + c] !== id) y++;
		if (y === h) continue;
		let end = y;
		while (end < h && owner[end * w + c] === id) end++;
		const border = c === c0 || c === c1 - 1 ? end - y : Math.min(end - y, Math.ceil(scale));
		context.fillRect(c, y, 1, border);
		context.fillRect(c, end - border, 1, border);
		hint = y;
	}
}

function groupMatches(model, group, marked) {
	for (let i = 0; i < model.groupOf.length; i++) if (model.groupOf[i] === group && marked[i] && model.capture.sites[i].device === model.index) return true;
	return false;
}

/* Draws dashed lines for limits, over the times when they apply. */
function drawLimits(context, limits, x, width, height, top) {
	context.strokeStyle = context.fillStyle = colours.quiet;
	context.setLineDash([5, 4]);
	context.textAlign = 'right';
	for (const { from, to, limit } of limits) {
		const y = Math.round(height - limit / top * height) + 0.5, x0 = Math.max(0, x(from)), x1 = Math.min(width, x(to)), text = 'limit ' + formatBytes(limit);
		if (limit > top) continue;
		context.beginPath();
		context.moveTo(x0, y);
		context.lineTo(x1, y);
		context.stroke();
		if (context.measureText(text).width + 12 < x1 - x0) context.fillText(text, x1 - 6, y - 5);
	}
	context.setLineDash([]);
	context.textAlign = 'left';
}

function drawGrid(context, model, view, width, height, top, limits) {
	context.globalCompositeOperation = 'destination-over';
	context.fillStyle = colours.grid;
	for (const tick of byteTicks(top, 5)) context.fillRect(0, Math.round(height - tick.at / top * height) - (tick.at ? 0 : 1), width, 1);
	for (const tick of timeTicks(view.t0, view.t1, Math.max(2, width / 110))) context.fillRect(Math.round((tick.at - view.t0) / (view.t1 - view.t0) * width), 0, 1, height);
	context.globalCompositeOperation = 'source-over';
	const x = time => (time - view.t0) / (view.t1 - view.t0) * width;
	drawLimits(context, limits, x, width, height, top);
	context.fillStyle = colours.peak;
	for (const refusal of model.capture.refusals) {
		if (refusal.time < view.t0 || refusal.time > view.t1 || (refusal.site >= 0 && model.capture.sites[refusal.site].device !== model.index)) continue;
		context.beginPath();
		context.moveTo(x(refusal.time) - 5, 0);
		context.lineTo(x(refusal.time) + 5, 0);
		context.lineTo(x(refusal.time), 8);
		context.fill();
	}
}

function drawAxes(canvasY, canvasX, view, chart) {
	const y = prepare(canvasY);
	y.context.fillStyle = colours.quiet;
	y.context.textAlign = 'right';
	y.context.textBaseline = 'middle';
	for (const tick of byteTicks(chart.top, 5)) {
		const at = y.height - tick.at / chart.top * y.height;
		if (at > 5) y.context.fillText(tick.text, y.width - 8, Math.min(y.height - 6, at));
	}
	const x = prepare(canvasX);
	x.context.fillStyle = colours.quiet;
	x.context.textBaseline = 'top';
	for (const tick of timeTicks(view.t0, view.t1, Math.max(2, x.width / 110))) {
		const at = (tick.at - view.t0) / (view.t1 - view.t0) * x.width, room = x.context.measureText(tick.text).width;
		x.context.fillText(tick.text, Math.max(0, Math.min(x.width - room, at - room / 2)), 3);
	}
}

/* Draws the whole trace in small, with the visible window marked. The computed columns are reused until the width or the device changes. */
function drawOverview(canvas, model, view, kept) {
	const { context, width, height } = prepare(canvas), end = Math.max(1, model.capture.end), columns = Math.max(1, Math.round(width));
	if (kept.model !== model || kept.columns !== columns) Object.assign(kept, { model, columns, moments: model.columns(0, end + 1, columns) });
	context.fillStyle = colours.hole;
	context.fillRect(0, 0, width, height);
	context.fillStyle = colours.faint;
	for (let c = 0; c < columns; c++) {
		const part = model.inUse(kept.moments[c]) / Math.max(1, model.peak) * (height - 4);
		context.fillRect(c, height - part, 1, part);
	}
	const x0 = view.t0 / end * width, x1 = view.t1 / end * width;
	context.fillStyle = colours.card;
	context.globalAlpha = 0.66;
	context.fillRect(0, 0, x0, height);
	context.fillRect(x1, 0, width - x1, height);
	context.globalAlpha = 1;
	context.strokeStyle = colours.accent;
	context.strokeRect(Math.max(0.5, x0), 0.5, Math.max(2, Math.min(width - 1, x1) - Math.max(0.5, x0)), height - 1);
}

function drawSteps(canvas, model, view) {
	const { context, width, height } = prepare(canvas), x = time => (time - view.t0) / (view.t1 - view.t0) * width;
	context.textBaseline = 'middle';
	model.capture.steps.forEach((step, i) => {
		const from = x(step.begin), to = x(step.begin + step.length);
		if (to < 0 || from > width) return;
		context.fillStyle = i % 2 ? colours.line : colours.hole;
		context.fillRect(from, 0, Math.max(1, to - from - 1), height);
		context.fillStyle = colours.quiet;
		const left = Math.max(0, from), room = Math.min(width, to) - left - 10;
		if (room > 14) fitText(context, room > 60 ? 'step ' + step.number : String(step.number), left + 5, height / 2 + 1, room);
	});
	if (!model.capture.ops.count) drawPauses(context, model, view, width, height);
}

/* Draws where the program waited for Large Model Support to compute a plan: in the lane of ops or, without ops, in the lane of steps. */
function drawPauses(context, model, view, width, height) {
	const x = time => (time - view.t0) / (view.t1 - view.t0) * width;
	for (const pause of model.capture.pauses) drawPause(context, x(pause.begin), x(pause.begin + pause.length), width, height);
}

/* Hatched, to differ from an op. */
function drawPause(context, from, to, width, height) {
	if (to < 0 || from > width) return;
	const left = Math.max(0, from), right = Math.max(left + 1, Math.min(width, to));
	context.save();
	context.beginPath();
	context.rect(left, 0, right - left, height);
	context.clip();
	context.strokeStyle = colours.out;
	context.lineWidth = 1.5;
	for (let at = left - height; at < right; at += 6) {
		context.beginPath();
		context.moveTo(at, height);
		context.lineTo(at + height, 0);
		context.stroke();
	}
	const label = 'LMS plans', room = right - left - 8;
	if (room > context.measureText(label).width) {
		context.fillStyle = colours.card;
		context.fillRect(left + 3, height / 2 - 8, context.measureText(label).width + 4, 16);
		context.fillStyle = colours.text;
		fitText(context, label, left + 5, height / 2 + 1, room);
	}
	context.restore();
}

/* Draws ops that are too short to be visible in grey; the larger their share of the time, the darker. */
function drawBusy(context, busy, view, unit, width, rows, tall) {
	context.fillStyle = colours.others;
	for (let row = 0; row < rows; row++) {
		for (let x = 0; x < width; x++) {
			const part = Math.min(1, busy.between(row, view.t0 + x * unit, view.t0 + (x + 1) * unit) / unit);
			if (!part) continue;
			context.globalAlpha = (view.matchText ? 0.1 : 0.2) + (view.matchText ? 0.1 : 0.5) * part;
			context.fillRect(x, row * tall + 1, 1, tall - 2);
		}
	}
	context.globalAlpha = 1;
}

function drawOps(canvas, model, view, opSpans) {
	const { context, width, height } = prepare(canvas), { ops, strings } = model.capture, unit = (view.t1 - view.t0) / width;
	const rows = Math.min(3, opSpans.threads.length), tall = height / rows, found = [];
	opSpans.spans.each(view.t0, view.t1, unit * 0.5, id => { if (found.length < 20000) found.push(id); });
	found.sort((a, b) => (ops.end[b] - ops.begin[b]) - (ops.end[a] - ops.begin[a]));
	context.textBaseline = 'middle';
	context.fillStyle = colours.hole;
	context.fillRect(0, 0, width, height);
	drawBusy(context, opSpans.busy, view, unit, width, rows, tall);
	for (const id of found) {
		const row = Math.min(rows - 1, opSpans.rowOf.get(ops.thread[id])), x0 = Math.max(0, (ops.begin[id] - view.t0) / unit), x1 = Math.min(width, (ops.end[id] - view.t0) / unit);
		const group = opSpans.groupOf(ops.name[id], ops.scope[id]), faded = view.matchText && !opSpans.matches(id, view.matchText);
		const colour = group === NOTHING ? colours.others : groupColour(model, group);
		context.fillStyle = colour;
		context.globalAlpha = faded ? 0.15 : x1 - x0 < 2 ? 0.55 : 0.85;
		context.fillRect(x0, row * tall + 1, Math.max(0.6, x1 - x0 - (x1 - x0 > 4 ? 1 : 0)), tall - 2);
		context.globalAlpha = 1;
		if (x1 - x0 > 30 && !faded) {
			context.fillStyle = '#fff';
			fitText(context, strings[ops.name[id]], x0 + 4, row * tall + tall / 2 + 0.5, x1 - x0 - 8);
		}
	}
	drawPauses(context, model, view, width, height);
}

/* Draws the rates of eviction above the middle and of restores below it. */
function drawTraffic(canvas, model, view) {
	const { context, width, height } = prepare(canvas), moves = model.capture.moves[model.index], wide = 3, bars = Math.max(1, Math.floor(width / wide)), unit = (view.t1 - view.t0) / bars;
	const outs = new Float64Array(bars), ins = new Float64Array(bars);
	let most = 1;
	for (let i = 0; i < bars; i++) {
		outs[i] = movesBetween(moves.out, view.t0 + i * unit, view.t0 + (i + 1) * unit).bytes;
		ins[i] = movesBetween(moves.in, view.t0 + i * unit, view.t0 + (i + 1) * unit).bytes;
		most = Math.max(most, outs[i], ins[i]);
	}
	const middle = Math.round(height / 2), room = middle - 2;
	context.fillStyle = colours.hole;
	context.fillRect(0, 0, width, height);
	for (let i = 0; i < bars; i++) {
		const x = i * width / bars, wide1 = width / bars - (width / bars > 2.5 ? 0.6 : 0);
		context.fillStyle = colours.out;
		if (outs[i]) context.fillRect(x, middle - Math.max(1, outs[i] / most * room), wide1, Math.max(1, outs[i] / most * room));
		context.fillStyle = colours.in;
		if (ins[i]) context.fillRect(x, middle + 1, wide1, Math.max(1, ins[i] / most * room));
	}
	context.fillStyle = colours.faint;
	context.fillRect(0, middle, width, 1);
	context.textBaseline = 'top';
	context.fillStyle = colours.quiet;
	context.fillText('out', 4, 2);
	context.textBaseline = 'bottom';
	context.fillText('in', 4, height - 1);
	return { most, unit, bars };
}

/* Draws the mapped memory as rows, like lines of text: blocks in the colours of their groups, holes plain. */
function drawMap(canvas, model, map, matches) {
	const { context, width, height } = prepare(canvas), { site } = model.capture;
	const rows = Math.max(1, Math.min(10, Math.ceil(map.heldBytes / 65536))), gap = 3, tall = (height - gap * (rows - 1)) / rows, each = map.heldBytes / rows || 1;
	for (let row = 0; row < rows; row++) {
		context.fillStyle = colours.hole;
		context.fillRect(0, row * (tall + gap), width, tall);
	}
	for (const piece of map.pieces) {
		if (piece.id === NOTHING) continue;
		const group = model.groupOf[site[piece.id]], faded = matches && !matches[site[piece.id]];
		context.fillStyle = groupColour(model, group);
		for (let at = piece.at, end = piece.at + piece.bytes; at < end - 1e-6;) {
			const row = Math.min(rows - 1, Math.floor(at / each)), stop = row + 1 === rows ? end : Math.min(end, (row + 1) * each);
			const x0 = (at - row * each) / each * width, x1 = (stop - row * each) / each * width;
			context.globalAlpha = faded ? 0.15 : 0.8 + 0.1 * (piece.id % 3);
			context.fillRect(x0, row * (tall + gap), Math.max(0.5, x1 - x0 - (x1 - x0 > 3 ? 0.75 : 0)), tall);
			if (stop <= at) break;
			at = stop;
		}
	}
	context.globalAlpha = 1;
	/* Mark the borders between regions that are not adjacent. */
	context.fillStyle = colours.text;
	let place = 0;
	for (const region of map.held.slice(0, -1)) {
		place += region.bytes;
		const row = Math.min(rows - 1, Math.floor(place / each));
		context.fillRect((place - row * each) / each * width - 0.5, row * (tall + gap) - 1, 1, tall + 2);
	}
	return { rows, tall, gap, each, width };
}
